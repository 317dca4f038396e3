// mbarriers, copies by the copy engine and by threads, and the fences between threads and the copy engine.

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"

namespace vcattn::emulator {

namespace {

/// function(lane) for the lanes of `mask`.
template <typename Function>
void each_lane(Mask mask, Function const& function) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (((mask >> lane) & 1u) != 0) function(lane);
  }
}

std::uint64_t shared_address(Warp& warp, Instruction const& in, std::uint32_t slot, int lane, int which) {
  return warp.slot<std::uint32_t>(slot)[lane] + static_cast<std::uint64_t>(in.offset[which]);
}

Step init(Warp& warp, Instruction const& in, Mask mask) {
  each_lane(mask, [&](int lane) {
    warp.cta().mbarriers.init(shared_address(warp, in, in.op[0], lane, 0), warp.slot<std::uint32_t>(in.op[1])[lane]);
  });
  return Step::next;
}

/// state, [barrier]
Step arrive(Warp& warp, Instruction const& in, Mask mask) {
  each_lane(mask, [&](int lane) { warp.cta().mbarriers.arrive(shared_address(warp, in, in.op[1], lane, 0), warp.release()); });
  warp.cta().event();
  return Step::yielded;
}

/// state, [barrier], bytes
Step arrive_expect(Warp& warp, Instruction const& in, Mask mask) {
  each_lane(mask, [&](int lane) {
    std::uint64_t const barrier = shared_address(warp, in, in.op[1], lane, 0);
    warp.cta().mbarriers.expect(barrier, warp.slot<std::uint32_t>(in.op[2])[lane]);
    warp.cta().mbarriers.arrive(barrier, warp.release());
  });
  warp.cta().event();
  return Step::next;
}

/// done, [barrier], parity. A wait may end early without success: now and then it does.
Step try_wait(Warp& warp, Instruction const& in, Mask mask) {
  Mask done = 0;
  int first = -1;
  each_lane(mask, [&](int lane) {
    std::uint64_t const barrier = shared_address(warp, in, in.op[1], lane, 0);
    bool const ended = warp.cta().mbarriers.has_ended(barrier, warp.slot<std::uint32_t>(in.op[2])[lane]);
    if (ended) done |= Mask{1} << lane;
    if (!ended && first < 0) first = lane;
  });
  if (warp.cta().grid.random.one_in(16)) {
    done = 0;
  } else if (done == 0) {
    warp.waits_for = "barrier " + warp.cta().mbarriers.describe(shared_address(warp, in, in.op[1], first, 0)) + ", parity " +
                     std::to_string(warp.slot<std::uint32_t>(in.op[2])[first]);
    return Step::blocked;
  }
  each_lane(done, [&](int lane) { warp.cta().mbarriers.acquire(shared_address(warp, in, in.op[1], lane, 0), warp.clock); });
  Mask& p = warp.lanes().predicates[in.op[0]];
  p = (p & ~mask) | done;
  return Step::next;
}

/// [to], [from], bytes, [barrier]
Step copy_bytes(Warp& warp, Instruction const& in, Mask mask) {
  each_lane(mask, [&](int lane) {
    std::uint64_t const to = shared_address(warp, in, in.op[0], lane, 0);
    std::uint32_t const bytes = warp.slot<std::uint32_t>(in.op[2])[lane];
    warp.cta().check_not_read(to, bytes);
    warp.cta().copies.start_bytes(to, warp.slot<std::uint64_t>(in.op[1])[lane] + static_cast<std::uint64_t>(in.offset[1]), bytes,
                                  shared_address(warp, in, in.op[3], lane, 2), warp.release());
  });
  return Step::next;
}

/// [to], [map, {column, row}], [barrier]
Step copy_box(Warp& warp, Instruction const& in, Mask mask) {
  each_lane(mask, [&](int lane) {
    std::uint64_t const to = shared_address(warp, in, in.op[0], lane, 0);
    std::uint32_t const bytes =
        warp.cta().copies.start_box(to, warp.slot<std::uint64_t>(in.op[1])[lane], warp.slot<std::int32_t>(in.op[2])[lane],
                                    warp.slot<std::int32_t>(in.op[3])[lane], shared_address(warp, in, in.op[4], lane, 1), warp.release());
    warp.cta().check_not_read(to, bytes);
  });
  return Step::next;
}

/// [to], [from], bytes, bytes that are there: all without the last one.
template <bool kPart>
Step thread_copy(Warp& warp, Instruction const& in, Mask mask) {
  Cta& cta = warp.cta();
  each_lane(mask, [&](int lane) {
    std::uint32_t const bytes = warp.slot<std::uint32_t>(in.op[2])[lane];
    std::uint64_t const from = warp.slot<std::uint64_t>(in.op[1])[lane] + static_cast<std::uint64_t>(in.offset[1]);
    cta.check_not_read(shared_address(warp, in, in.op[0], lane, 0), bytes);
    warp.copies.start(cta.grid.global, cta.shared, static_cast<std::uint32_t>(lane), shared_address(warp, in, in.op[0], lane, 0), from,
                      bytes, kPart ? warp.slot<std::uint32_t>(in.op[3])[lane] : bytes);
    cta.grid.counters.copied_bytes += bytes;
  });
  return Step::next;
}
Step commit_copies(Warp& warp, Instruction const&, Mask mask) {
  warp.copies.commit(mask);
  return Step::next;
}
Step wait_copies(Warp& warp, Instruction const& in, Mask mask) {
  Cta& cta = warp.cta();
  warp.copies.wait(cta.grid.global, cta.shared, mask, *warp.slot<std::uint32_t>(in.op[0]), warp.stamp());
  return Step::next;
}

Step fence_barriers(Warp& warp, Instruction const&, Mask) {
  warp.cta().mbarriers.fence();
  return Step::next;
}
Step fence_proxy(Warp& warp, Instruction const&, Mask) {
  warp.cta().mbarriers.fence();
  warp.cta().shared.fence_async();
  return Step::next;
}

}  // namespace

std::vector<Form> async_forms() {
  return {
      {"mbarrier.init.shared.b64", "=sr", nullptr, init},
      {"mbarrier.arrive.shared.b64", "d=s", nullptr, arrive},
      {"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64", "d=sr", nullptr, arrive_expect},
      {"mbarrier.try_wait.parity.shared::cta.b64", "p=sr", nullptr, try_wait},
      {"fence.mbarrier_init.release.cluster", "", nullptr, fence_barriers},
      {"fence.proxy.async", "", nullptr, fence_proxy},
      {"fence.proxy.async.shared::cta", "", nullptr, fence_proxy},
      {"cp.async.cg.shared.global", "=smrr", nullptr, thread_copy<true>},
      {"cp.async.cg.shared.global", "=smr", nullptr, thread_copy<false>},
      {"cp.async.ca.shared.global", "=smr", nullptr, thread_copy<false>},
      {"cp.async.commit_group", "", nullptr, commit_copies},
      {"cp.async.wait_group", "=r", nullptr, wait_copies},
      {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "=smrs", nullptr, copy_bytes},
      {"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", "=sts", nullptr, copy_box},
  };
}

}  // namespace vcattn::emulator
