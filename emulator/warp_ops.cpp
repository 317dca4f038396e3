// Instructions that look at the lanes of a warp or the warps of a CTA together: control flow, votes, shuffles, barriers, register budget.

#include <algorithm>
#include <bit>
#include <functional>

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"

namespace vcattn::emulator {

namespace {

Step branch(Warp& warp, Instruction const& in, Mask mask) { return warp.branch(in, mask); }
Step leave(Warp& warp, Instruction const&, Mask mask) { return warp.exit(mask); }
Step trap(Warp&, Instruction const&, Mask) { throw Fault("trap"); }

/// The member mask of a .sync instruction: its lanes must be there.
void check_members(Warp& warp, std::uint32_t slot, Mask mask, char const* what) {
  auto const* members = warp.slot<std::uint32_t>(slot);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) == 0) continue;
    if (((members[lane] >> lane) & 1u) == 0)
      throw Fault(std::string(what) + " by lane " + std::to_string(lane) + ", which its member mask leaves out");
    if (Mask const absent = members[lane] & ~mask & warp.full(); absent != 0) {
      throw Fault(std::string(what) + " waits for lane " + std::to_string(std::countr_zero(absent)) + ", which is elsewhere");
    }
  }
}

enum class Shuffle : std::uint8_t { bfly, idx, up, down };

/// d|p, a, b, c, members. c: clamp and segment mask.
template <Shuffle kMode, bool kPredicate>
Step shuffle(Warp& warp, Instruction const& in, Mask mask) {
  constexpr int kFirst = kPredicate ? 2 : 1;
  check_members(warp, in.operands[kFirst + 3], mask, "shfl.sync");
  auto const* a = warp.slot<std::uint32_t>(in.operands[kFirst]);
  auto const* b = warp.slot<std::uint32_t>(in.operands[kFirst + 1]);
  auto const* c = warp.slot<std::uint32_t>(in.operands[kFirst + 2]);
  std::uint32_t result[kLanes];
  Mask valid = 0;
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    std::uint32_t const by = b[lane] & 31u, clamp = c[lane] & 31u, segment = (c[lane] >> 8) & 31u;
    std::uint32_t const last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    std::uint32_t source = lane;
    bool inside = true;
    switch (kMode) {
      case Shuffle::up:
        source = lane - by;
        inside = static_cast<std::int32_t>(source) >= static_cast<std::int32_t>(last);
        break;
      case Shuffle::down:
        source = lane + by;
        inside = source <= last;
        break;
      case Shuffle::bfly:
        source = lane ^ by;
        inside = source <= last;
        break;
      case Shuffle::idx:
        source = first | (by & ~segment);
        inside = source <= last;
        break;
    }
    if (!inside) source = lane;
    if (inside) valid |= Mask{1} << lane;
    if (((mask >> lane) & 1u) != 0 && ((mask >> source) & 1u) == 0) {
      throw Fault("shfl.sync of lane " + std::to_string(lane) + " reads lane " + std::to_string(source) + ", which does not take part");
    }
    result[lane] = a[source];
  }
  auto* d = warp.slot<std::uint32_t>(in.op[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) != 0) d[lane] = result[lane];
  }
  if constexpr (kPredicate) {
    Mask& p = warp.lanes().predicates[in.op[1]];
    p = (p & ~mask) | (valid & mask);
  }
  return Step::next;
}

enum class Vote : std::uint8_t { any, all };

template <Vote kVote>
Step vote(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[2], mask, "vote.sync");
  Mask const set = warp.lanes().predicates[in.op[1]] & mask;
  bool const result = kVote == Vote::any ? set != 0 : set == mask;
  Mask& p = warp.lanes().predicates[in.op[0]];
  p = (p & ~mask) | (result ? mask : 0);
  return Step::next;
}

void store_same(Warp& warp, std::uint32_t slot, Mask mask, std::uint32_t value) {
  auto* d = warp.slot<std::uint32_t>(slot);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) != 0) d[lane] = value;
  }
}

Step ballot(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[2], mask, "vote.sync");
  store_same(warp, in.op[0], mask, warp.lanes().predicates[in.op[1]] & mask);
  return Step::next;
}

template <typename Function>
Step reduce(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[2], mask, "redux.sync");
  auto const* a = warp.slot<std::uint32_t>(in.op[1]);
  std::uint32_t result = a[std::countr_zero(mask)];
  for (int lane = std::countr_zero(mask) + 1; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) != 0) result = Function{}(result, a[lane]);
  }
  store_same(warp, in.op[0], mask, result);
  return Step::next;
}
struct Smaller {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return std::min(a, b); }
};
struct Larger {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return std::max(a, b); }
};

/// Any one lane: a random one.
Step elect(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[2], mask, "elect.sync");
  std::uint32_t n = warp.cta().grid.random.below(static_cast<std::uint32_t>(std::popcount(mask)));
  Mask lanes = mask;
  for (; n > 0; --n) lanes &= lanes - 1;
  auto const leader = static_cast<std::uint32_t>(std::countr_zero(lanes));
  store_same(warp, in.op[0], mask, leader);
  Mask& p = warp.lanes().predicates[in.op[1]];
  p = (p & ~mask) | (Mask{1} << leader);
  return Step::next;
}

Step warp_barrier(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[0], mask, "bar.warp.sync");
  return Step::next;
}

/// Whether any lane has the same number: the lanes that have it.
Step match_any(Warp& warp, Instruction const& in, Mask mask) {
  check_members(warp, in.op[2], mask, "match.any.sync");
  auto const* a = warp.slot<std::uint32_t>(in.op[1]);
  Mask result[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int other = 0; other < kLanes; ++other) {
      if (((mask >> other) & 1u) != 0 && a[other] == a[lane]) result[lane] |= Mask{1} << other;
    }
  }
  auto* d = warp.slot<std::uint32_t>(in.op[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) != 0) d[lane] = result[lane];
  }
  return Step::next;
}

/// All warps of the CTA that have not exited. Of bar.red.or: result, number, predicate.
template <bool kReduces>
Step cta_barrier(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, kReduces ? "bar.red" : "bar.sync");
  std::uint32_t const number = *warp.slot<std::uint32_t>(in.op[kReduces ? 1 : 0]);
  if (number > 15) throw Fault("barrier number " + std::to_string(number));
  CtaBarrier& barrier = warp.cta().barriers[number];
  if (!warp.at_barrier[number]) {
    warp.at_barrier[number] = true;
    warp.barrier_round[number] = barrier.round;
    ++barrier.arrived;
    barrier.gathered.join(warp.release());
    if (kReduces && (warp.lanes().predicates[in.op[2]] & mask) != 0) barrier.any_gathered = true;
    warp.cta().release_barrier(number);
  }
  if (barrier.round == warp.barrier_round[number]) {
    warp.waits_for = "barrier " + std::to_string(number) + " of the CTA" + ", where " + std::to_string(barrier.arrived) + " of " +
                     std::to_string(warp.cta().warps_alive()) + " warps are";
    return Step::blocked;
  }
  warp.at_barrier[number] = false;
  warp.clock.join(barrier.released);
  if constexpr (kReduces) {
    Mask& p = warp.lanes().predicates[in.op[0]];
    p = (p & ~mask) | (barrier.any_released ? mask : 0);
  }
  return Step::next;
}

/// Registers move from warps that give them back to warps that ask for more.
template <bool kMore>
Step set_registers(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "setmaxnreg");
  std::uint32_t const wanted = *warp.slot<std::uint32_t>(in.op[0]);
  if (wanted % 8 != 0 || wanted < 24 || wanted > 256) throw Fault("setmaxnreg to " + std::to_string(wanted) + " registers");
  if (kMore ? wanted < warp.registers : wanted > warp.registers) {
    throw Fault(std::string("setmaxnreg.") + (kMore ? "inc" : "dec") + " from " + std::to_string(warp.registers) + " to " +
                std::to_string(wanted));
  }
  std::int64_t const more = (std::int64_t{wanted} - warp.registers) * kLanes;
  if (more > warp.cta().free_registers) {
    warp.waits_for = "setmaxnreg: " + std::to_string(more) + " registers for " + std::to_string(wanted) + " per thread, " +
                     std::to_string(warp.cta().free_registers) + " are free";
    return Step::blocked;
  }
  warp.cta().free_registers -= more;
  warp.registers = wanted;
  warp.cta().event();
  return Step::next;
}

}  // namespace

std::vector<Form> warp_forms() {
  return {
      {"bra", "l", nullptr, branch},
      {"bra.uni", "l", nullptr, branch},
      {"ret", "", nullptr, leave},
      {"exit", "", nullptr, leave},
      {"trap", "", nullptr, trap},
      {"bar.sync", "=r", nullptr, cta_barrier<false>},
      {"bar.red.or.pred", "p=rp", nullptr, cta_barrier<true>},
      {"match.any.sync.b32", "r=rr", nullptr, match_any},
      {"bar.warp.sync", "=r", nullptr, warp_barrier},
      {"shfl.sync.bfly.b32", "rp=rrrr", nullptr, shuffle<Shuffle::bfly, true>},
      {"shfl.sync.idx.b32", "rp=rrrr", nullptr, shuffle<Shuffle::idx, true>},
      {"shfl.sync.up.b32", "rp=rrrr", nullptr, shuffle<Shuffle::up, true>},
      {"shfl.sync.down.b32", "rp=rrrr", nullptr, shuffle<Shuffle::down, true>},
      {"shfl.sync.bfly.b32", "r=rrrr", nullptr, shuffle<Shuffle::bfly, false>},
      {"shfl.sync.idx.b32", "r=rrrr", nullptr, shuffle<Shuffle::idx, false>},
      {"vote.sync.any.pred", "p=pr", nullptr, vote<Vote::any>},
      {"vote.sync.all.pred", "p=pr", nullptr, vote<Vote::all>},
      {"vote.sync.ballot.b32", "r=pr", nullptr, ballot},
      {"redux.sync.add.u32", "r=rr", nullptr, reduce<std::plus<std::uint32_t>>},
      {"redux.sync.add.s32", "r=rr", nullptr, reduce<std::plus<std::uint32_t>>},
      {"redux.sync.min.u32", "r=rr", nullptr, reduce<Smaller>},
      {"redux.sync.max.u32", "r=rr", nullptr, reduce<Larger>},
      {"elect.sync", "rp=r", nullptr, elect},
      {"setmaxnreg.inc.sync.aligned.u32", "=r", nullptr, set_registers<true>},
      {"setmaxnreg.dec.sync.aligned.u32", "=r", nullptr, set_registers<false>},
  };
}

}  // namespace vcattn::emulator
