#include "emulator/barriers.hpp"

#include "emulator/fault.hpp"

namespace vcattn::emulator {

namespace {

constexpr std::uint32_t kMaxArrivals = (1u << 20) - 1;
constexpr std::int64_t kMaxBytes = (1 << 20) - 1;

}  // namespace

Mbarrier const& Mbarriers::at(std::uint64_t address) const {
  auto const found = barriers_.find(address);
  if (found == barriers_.end()) throw Fault("use of the barrier " + shared_.describe(address) + " before its mbarrier.init");
  return found->second;
}

std::string Mbarriers::describe(std::uint64_t address) const {
  auto const found = barriers_.find(address);
  std::string const name = shared_.describe(address);
  if (found == barriers_.end()) return name;
  Mbarrier const& b = found->second;
  return name + " (phase " + std::to_string(b.phase) + ", " + std::to_string(b.pending) + " of " + std::to_string(b.expected) +
         " arrivals and " + std::to_string(b.bytes) + " bytes missing)";
}

void Mbarriers::init(std::uint64_t address, std::uint32_t expected) {
  if (barriers_.count(address) != 0) throw Fault("second mbarrier.init of " + shared_.describe(address) + " without mbarrier.inval");
  if (expected == 0 || expected > kMaxArrivals)
    throw Fault("mbarrier.init of " + shared_.describe(address) + " with " + std::to_string(expected) + " arrivals");
  auto const number = static_cast<std::uint32_t>(barriers_.size());
  if (number == Clock::kBarriers) throw Fault("more than " + std::to_string(Clock::kBarriers) + " mbarriers");
  shared_.make_barrier(address);
  barriers_[address] = {expected, expected, 0, 0, false, number, {}, {}};
}

void Mbarriers::fence() {
  for (auto& [address, barrier] : barriers_) barrier.fenced = true;
}

void Mbarriers::arrive(std::uint64_t address, Clock const& clock) {
  Mbarrier& b = at(address);
  if (b.pending == 0) throw Fault("one arrival too many at " + describe(address));
  --b.pending;
  b.arrived.join(clock);
  end_phase_if_complete(b);
}

void Mbarriers::expect(std::uint64_t address, std::uint32_t bytes) {
  Mbarrier& b = at(address);
  b.bytes += bytes;
  if (b.bytes > kMaxBytes) throw Fault("too many expected bytes at " + describe(address));
}

void Mbarriers::check_copy(std::uint64_t address) {
  if (!at(address).fenced)
    throw Fault("copy with the barrier " + shared_.describe(address) + ", which no fence made visible to the copy engine");
}

void Mbarriers::complete(std::uint64_t address, std::uint32_t bytes, Clock const& clock) {
  Mbarrier& b = at(address);
  b.bytes -= bytes;
  b.arrived.join(clock);
  if (b.bytes < -kMaxBytes) throw Fault("too many bytes at " + describe(address));
  end_phase_if_complete(b);
}

Stamp Mbarriers::stamp(std::uint64_t address) const {
  Mbarrier const& b = at(address);
  return {Clock::kWarps + b.number, static_cast<std::uint32_t>(b.phase + 1)};
}

void Mbarriers::acquire(std::uint64_t address, Clock& clock) const {
  Mbarrier const& b = at(address);
  clock.join(b.released);
  std::uint32_t& seen = clock.time[Clock::kWarps + b.number];
  seen = std::max(seen, static_cast<std::uint32_t>(b.phase));
}

bool Mbarriers::has_ended(std::uint64_t address, std::uint32_t parity) const { return (at(address).phase & 1u) != (parity & 1u); }

void Mbarriers::end_phase_if_complete(Mbarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.expected;
  ++b.phase;
  b.released.join(b.arrived);
}

}  // namespace vcattn::emulator
