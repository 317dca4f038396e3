#pragma once

// mbarriers of a CTA, and its numbered barriers.

#include <cstdint>
#include <map>
#include <string>

#include "emulator/memory.hpp"

namespace vcattn::emulator {

/// An mbarrier: a phase ends when all arrivals and all bytes of copies have come.
struct Mbarrier {
  std::uint32_t expected = 0;  // arrivals per phase
  std::uint32_t pending = 0;   // arrivals that are missing
  std::int64_t bytes = 0;      // expected, less those that came
  std::uint64_t phase = 0;     // phases that have ended
  bool fenced = false;         // the copy engine may use it
  std::uint32_t number = 0;    // in the order of mbarrier.init
  Clock arrived, released;     // what those knew that arrived, in this phase and in those that have ended
};

class Mbarriers {
 public:
  explicit Mbarriers(SharedMemory& shared) : shared_(shared) {}

  // Each throws Fault with the name of the barrier.
  void init(std::uint64_t address, std::uint32_t expected);
  void fence();
  void arrive(std::uint64_t address, Clock const& clock);
  void expect(std::uint64_t address, std::uint32_t bytes);
  /// For the copy engine, when a copy starts and when it has ended.
  void check_copy(std::uint64_t address);
  /// clock: what the starter of the copy knew.
  void complete(std::uint64_t address, std::uint32_t bytes, Clock const& clock);
  /// Of a copy that completes now.
  Stamp stamp(std::uint64_t address) const;
  /// After a successful wait.
  void acquire(std::uint64_t address, Clock& clock) const;
  bool has_ended(std::uint64_t address, std::uint32_t parity) const;
  /// "kv_full[1] (phase 3, 0 arrivals and 16384 bytes missing)"
  std::string describe(std::uint64_t address) const;

 private:
  Mbarrier const& at(std::uint64_t address) const;
  Mbarrier& at(std::uint64_t address) { return const_cast<Mbarrier&>(static_cast<Mbarriers const*>(this)->at(address)); }
  void end_phase_if_complete(Mbarrier& barrier);

  SharedMemory& shared_;
  std::map<std::uint64_t, Mbarrier> barriers_;
};

}  // namespace vcattn::emulator
