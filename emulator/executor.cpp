#include "emulator/executor.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <ostream>
#include <utility>

#include "emulator/fault.hpp"
#include "emulator/launch.hpp"

namespace vcattn::emulator {

namespace {

constexpr std::uint32_t kNever = ~0u;
constexpr std::uint32_t kRegistersOfCta = 65536;
constexpr std::uint32_t kLongestSlice = 256;
constexpr std::uint32_t kSleepOneIn = 16;     // slices that end in a sleep
constexpr std::uint32_t kLongestSleep = 512;  // steps
constexpr std::uint32_t kLatestStart = 256;

std::string base_name(std::string const& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Counters& Counters::operator+=(Counters const& more) {
  auto const add = [](Traffic& to, Traffic const& from) {
    to.read_bytes += from.read_bytes;
    to.written_bytes += from.written_bytes;
  };
  add(global, more.global);
  add(shared, more.shared);
  add(local, more.local);
  launches += more.launches;
  global_sectors += more.global_sectors;
  matrix_shared_bytes += more.matrix_shared_bytes;
  shared_wavefronts += more.shared_wavefronts;
  shared_bank_conflicts += more.shared_bank_conflicts;
  warp_instructions += more.warp_instructions;
  thread_instructions += more.thread_instructions;
  matrix_instructions += more.matrix_instructions;
  copied_bytes += more.copied_bytes;
  matrix_seconds += more.matrix_seconds;
  for (auto const& [name, count] : more.by_form) by_form[name] += count;
  return *this;
}

Warp::Warp(Cta& cta, std::uint32_t index)
    : matrix(cta.grid.kernel.matrix_slots), local(cta.grid.kernel.local_bytes), cta_(cta), kernel_(cta.grid.kernel), index_(index) {
  std::uint32_t const threads = cta.grid.block.count() - index * kLanes;
  full_ = threads >= kLanes ? kAllLanes : (Mask{1} << threads) - 1;
  // Aligned to what the widest vector loads of the host like.
  constexpr std::size_t kSlack = 64 / sizeof(std::uint32_t);
  std::vector<std::vector<std::uint32_t>>& files = cta.grid.register_files;
  if (files.size() <= index) files.resize(index + 1);
  std::vector<std::uint32_t>& file = files[index];
  file.resize(std::size_t{kernel_.slots} * kLanes + kSlack);
  predicates_.resize(kernel_.predicates + 1);
  auto const address = reinterpret_cast<std::uintptr_t>(file.data());
  lanes_ = {file.data() + (64 - address % 64) % 64 / sizeof(std::uint32_t), predicates_.data()};
  stack_.push_back({0, kNever, full_});
  Trace const& wanted = cta.grid.trace;
  Dim const size = cta.grid.size;
  traced_ = wanted.out != nullptr && wanted.warp == index && wanted.cta == (cta.index.z * size.y + cta.index.y) * size.x + cta.index.x;
  observed_ = traced_ || cta.grid.count_forms;
  clock.time[index_] = 1;
  fill_constants();
}

void Warp::fill_constants() {
  Grid const& grid = cta_.grid;
  for (Constant const& c : kernel_.constants) {
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
      std::uint32_t const thread = index_ * kLanes + lane;
      std::uint64_t value = c.number;
      switch (c.kind) {
        case Constant::Kind::number:
          break;
        case Constant::Kind::symbol:
          value = grid.symbols.at(c.symbol);
          break;
        case Constant::Kind::tid:
          value = c.number == 0   ? thread % grid.block.x
                  : c.number == 1 ? thread / grid.block.x % grid.block.y
                                  : thread / grid.block.x / grid.block.y;
          break;
        case Constant::Kind::ntid:
          value = grid.block[c.number];
          break;
        case Constant::Kind::ctaid:
          value = cta_.index[c.number];
          break;
        case Constant::Kind::nctaid:
          value = grid.size[c.number];
          break;
        case Constant::Kind::laneid:
          value = lane;
          break;
        case Constant::Kind::warpid:
          value = index_;
          break;
      }
      if (c.wide) {
        slot<std::uint64_t>(c.slot)[lane] = value;
      } else {
        slot<std::uint32_t>(c.slot)[lane] = static_cast<std::uint32_t>(value);
      }
    }
  }
}

std::string Warp::label() const { return "warp " + std::to_string(index_); }

std::string Warp::where() const {
  if (stack_.empty()) return "exited";
  Path const& path = stack_.back();
  if (path.pc >= kernel_.code.size()) return "behind the end of the kernel";
  Instruction const& in = kernel_.code[path.pc];
  auto const file = cta_.grid.module.files.find(in.file);
  std::string const source =
      file == cta_.grid.module.files.end() ? "" : base_name(file->second) + ":" + std::to_string(in.source_line) + ", ";
  char mask[16];
  std::snprintf(mask, sizeof mask, "%08x", path.mask);
  return "at " + source + "PTX line " + std::to_string(in.line) + ", lanes " + mask + ": " + kernel_.texts[in.text].substr(0, 100);
}

void Warp::require_all_lanes(Mask mask, char const* what) const {
  if (mask == full_) return;
  throw Fault(std::string(what) + " by some lanes of a warp only");
}

void Warp::observe(Instruction const& in, Mask mask) {
  Grid& grid = cta_.grid;
  if (grid.count_forms) ++grid.counters.by_form[kernel_.form_names[in.form]];
  if (traced_ && (in.lanes == nullptr || mask == 0)) trace(in, mask);
}

/// "PTX line, lanes, instruction = result in the first of them"
void Warp::trace(Instruction const& in, Mask mask) const {
  char text[64];
  std::snprintf(text, sizeof text, "%6u %08x  ", in.line, mask);
  std::ostream& out = *cta_.grid.trace.out;
  out << text << kernel_.texts[in.text];
  if (in.lanes != nullptr && mask != 0) {
    int const lane = std::countr_zero(mask);
    if (in.result == 'r' || in.result == 'h') {
      std::uint32_t const x = slot<std::uint32_t>(in.op[0])[lane];
      std::snprintf(text, sizeof text, " = 0x%08x (%g)", x, static_cast<double>(std::bit_cast<float>(x)));
    } else if (in.result == 'd') {
      std::snprintf(text, sizeof text, " = 0x%016llx", static_cast<unsigned long long>(slot<std::uint64_t>(in.op[0])[lane]));
    } else if (in.result == 'p') {
      std::snprintf(text, sizeof text, " = %08x", predicates_[in.op[0]] & mask);
    } else {
      text[0] = 0;
    }
    out << text;
  }
  out << '\n';
}

void Warp::set_undefined(std::uint32_t slot, int lane, std::uint64_t address) {
  any_undefined_ = true;
  undefined_address_ = address;
  undefined_.resize(kernel_.slots);
  undefined_predicates_.resize(kernel_.predicates + 1);
  undefined_[slot] |= Mask{1} << lane;
}

/// Before `in`: results that depend on what is not defined are not, either.
void Warp::check_defined(Instruction const& in, Mask mask) {
  auto const refuse = [&] {
    throw Fault("use of a shared read of " + cta_.shared.describe(undefined_address_) + ", which was never written");
  };
  if (in.guard >= 0) {
    auto const guard = static_cast<std::size_t>(in.guard);
    if ((undefined_predicates_[guard] & mask) != 0) refuse();
    mask &= in.guard_negated ? ~predicates_[guard] : predicates_[guard];
  }
  std::string const& name = kernel_.form_names[in.form];
  Mask depends = 0;
  for (std::uint32_t const p : in.source_predicates) depends |= undefined_predicates_[p];
  if (name.starts_with("selp.")) {
    Mask const chosen = predicates_[in.op[3]];
    depends |= (undefined_[in.op[1]] & chosen) | (undefined_[in.op[2]] & ~chosen);
  } else {
    for (std::uint32_t const slot : in.sources) depends |= undefined_[slot];
  }
  if (name.starts_with("cp.async.cg") && in.operands.size() == 4) {
    // Nothing is read from the address where there are no bytes.
    Mask empty = 0;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) empty |= slot<std::uint32_t>(in.op[3])[lane] == 0 ? Mask{1} << lane : 0;
    depends = (undefined_[in.op[0]] | undefined_[in.op[2]] | undefined_[in.op[3]] | (undefined_[in.op[1]] & ~empty));
  }
  depends &= mask;
  if (name.starts_with("mma.sync")) return;  // which knows better
  if (depends != 0 && in.lanes == nullptr) refuse();
  bool cleared = false;
  auto const set = [&](Mask& lanes) {
    Mask const before = std::exchange(lanes, (lanes & ~mask) | depends);
    cleared = cleared || (before != 0 && lanes == 0);
  };
  for (std::uint32_t const slot : in.results) set(undefined_[slot]);
  for (std::uint32_t const p : in.result_predicates) set(undefined_predicates_[p]);
  auto const none = [](std::vector<Mask> const& masks) { return std::all_of(masks.begin(), masks.end(), [](Mask m) { return m == 0; }); };
  if (cleared) any_undefined_ = !(none(undefined_) && none(undefined_predicates_));
}

Step Warp::run(std::uint32_t count) {
  Counters& counters = cta_.grid.counters;
  Instruction const* const code = kernel_.code.data();
  for (; count > 0; --count) {
    Path& path = stack_.back();
    if (path.pc == path.reconverge) {
      stack_.pop_back();
      continue;
    }
    Instruction const& in = code[path.pc];
    Mask mask = path.mask;
    if (in.guard >= 0) {
      Mask const guard = predicates_[static_cast<std::size_t>(in.guard)];
      mask &= in.guard_negated ? ~guard : guard;
    }
    ++counters.warp_instructions;
    counters.thread_instructions += static_cast<std::uint64_t>(std::popcount(mask));
    if (observed_) observe(in, mask);
    if (any_undefined_) check_defined(in, path.mask);
    if (mask == 0) {
      ++path.pc;
      continue;
    }
    if (in.touches_matrix) matrix.check_access(kernel_, in);
    if (in.lanes != nullptr) {
      in.lanes(lanes_, in, mask);
      if (traced_) trace(in, mask);
      ++path.pc;
      continue;
    }
    switch (in.machine(*this, in, mask)) {
      case Step::next:
        ++path.pc;
        break;
      case Step::jumped:
        break;
      case Step::blocked:
        return Step::blocked;
      case Step::yielded:
        ++path.pc;
        return Step::yielded;
      case Step::exited:
        return Step::exited;
    }
  }
  return Step::yielded;
}

Step Warp::branch(Instruction const& in, Mask taken) {
  Path& path = stack_.back();
  if (taken == path.mask) {
    path.pc = in.target;
    return Step::jumped;
  }
  Path sides[2] = {{in.target, in.reconverge, taken}, {path.pc + 1, in.reconverge, path.mask & ~taken}};
  if (cta_.grid.random.one_in(2)) std::swap(sides[0], sides[1]);
  if (in.reconverge == path.reconverge) {
    stack_.pop_back();  // the path below meets them there
  } else {
    path.pc = in.reconverge;
  }
  for (Path const& side : sides) {
    if (side.pc != in.reconverge) stack_.push_back(side);
  }
  return Step::jumped;
}

Step Warp::exit(Mask leaving) {
  if (leaving == stack_.back().mask) {
    // The others go on.
  } else {
    ++stack_.back().pc;
  }
  for (Path& path : stack_) path.mask &= ~leaving;
  std::erase_if(stack_, [](Path const& path) { return path.mask == 0; });
  if (!stack_.empty()) return Step::jumped;
  if (matrix.pending()) throw Fault("a warp exits before its wgmma have been waited for");
  return Step::exited;
}

Cta::Cta(Grid& cta_grid, Dim cta_index)
    : grid(cta_grid),
      index(cta_index),
      shared(cta_grid.shared_bytes),
      mbarriers(shared),
      copies(cta_grid.global, shared, mbarriers, cta_grid.random) {
  for (NamedRange const& range : grid.names) shared.name(range.offset, range.bytes, range.name);
  std::uint32_t const threads = grid.block.count();
  std::uint32_t const most = std::max(grid.kernel.max_threads, threads);
  std::uint32_t const registers = std::min(kRegistersOfCta / most / 8 * 8, 248u);
  free_registers = std::int64_t{kRegistersOfCta} - std::int64_t{registers} * threads;
  for (std::uint32_t w = 0; w * kLanes < threads; ++w) {
    warps.push_back(std::make_unique<Warp>(*this, w));
    warps.back()->registers = registers;
    warps.back()->sleeps_until = grid.random.below(kLatestStart);
  }
}

std::uint32_t Cta::warps_alive() const {
  return static_cast<std::uint32_t>(std::count_if(warps.begin(), warps.end(), [](auto const& w) { return !w->has_exited(); }));
}

void Cta::release_barrier(std::uint32_t number) {
  CtaBarrier& barrier = barriers[number];
  if (barrier.arrived == 0 || barrier.arrived < warps_alive()) return;
  barrier.arrived = 0;
  barrier.released.join(barrier.gathered);
  barrier.any_released = std::exchange(barrier.any_gathered, false);
  ++barrier.round;
  event();
}

void Cta::run() {
  while (warps_alive() > 0) step();
  while (copies.pending()) {
    // The memory of a CTA that has ended may belong to the next one.
    throw Fault("CTA " + std::to_string(index.x) + " ends before its copies");
  }
}

void Cta::check_same_product(std::uint32_t warpgroup, std::size_t n, Instruction const& in, std::uint64_t a, std::uint64_t b) {
  if (products_.size() <= warpgroup) products_.resize(warpgroup + 1);
  std::vector<Product>& products = products_[warpgroup];
  if (n == products.size()) return products.push_back({&in, a, b});
  Product const& other = products[n];
  if (other.in != &in)
    throw Fault("this wgmma is the one of PTX line " + std::to_string(other.in->line) + " for another warp of the warpgroup");
  if (other.a != a || other.b != b) throw Fault("the descriptors of a wgmma differ between the warps of a warpgroup");
}

void Cta::check_not_read(std::uint64_t address, std::uint32_t bytes) const {
  for (auto const& warp : warps) {
    if (warp->matrix.reads(address, address + bytes)) {
      throw Fault("copy into " + shared.describe(address) + ", which a wgmma of " + warp->label() + " reads that it has not waited for");
    }
  }
}

void Cta::complete_copy(bool slow_ones) {
  try {
    std::uint32_t const bytes = copies.complete_one(slow_ones);
    grid.counters.copied_bytes += bytes;
    if (bytes != 0) event();
  } catch (Fault const& fault) {
    report(nullptr, fault.what());
  }
}

/// A random one that can go on; nullptr: none can. Sleepers are woken only if all the others wait.
Warp* Cta::next_warp() {
  Warp* runnable[64];
  std::uint32_t count = 0;
  Warp* sleeper = nullptr;
  for (auto const& warp : warps) {
    if (warp->has_exited() || warp->stalled_at == events_) continue;
    if (warp->sleeps_until <= steps_) {
      runnable[count++] = warp.get();
    } else if (sleeper == nullptr || warp->sleeps_until < sleeper->sleeps_until) {
      sleeper = warp.get();
    }
  }
  if (count > 0) return runnable[grid.random.below(count)];
  if (sleeper != nullptr) sleeper->sleeps_until = 0;
  return sleeper;
}

/// One slice of one warp, and perhaps something asynchronous.
void Cta::step() {
  Random& random = grid.random;
  ++steps_;
  if (copies.pending() && random.one_in(4)) complete_copy(false);
  Warp* const warp = next_warp();
  if (warp == nullptr) {
    if (!copies.pending()) report(nullptr, "deadlock: no warp can go on");
    complete_copy(true);
    return;
  }
  try {
    if (random.one_in(8)) warp->matrix.compute_one(*warp);
    Step const step = warp->run(1 + random.below(kLongestSlice));
    if (step == Step::blocked) {
      warp->stalled_at = events_;
    } else {
      warp->waits_for.clear();
    }
    if (step == Step::exited) {
      event();
      for (std::uint32_t n = 0; n < std::size(barriers); ++n) release_barrier(n);
    }
    if (step == Step::yielded && random.one_in(kSleepOneIn)) warp->sleeps_until = steps_ + random.below(kLongestSleep);
  } catch (Fault const& fault) {
    report(warp, fault.what());
  }
}

void Cta::report(Warp const* warp, std::string const& what) const {
  std::string text = what + "\n  in " + demangled(grid.kernel.name) + ", CTA (" + std::to_string(index.x) + ", " + std::to_string(index.y) +
                     ", " + std::to_string(index.z) + ")";
  if (warp != nullptr) text += ", " + warp->label() + " " + warp->where();
  for (auto const& other : warps) {
    if (other.get() == warp || other->has_exited() || other->waits_for.empty()) continue;
    text += "\n  " + other->label() + " waits for " + other->waits_for + " " + other->where();
  }
  throw Fault(text);
}

}  // namespace vcattn::emulator
