#pragma once

// Bulk copies (TMA) of a CTA. A copy spoils its destination when it starts and completes at a random later time; some take so long that
// every warp has to wait for them.

#include <cstdint>
#include <vector>

#include "emulator/barriers.hpp"
#include "emulator/ir.hpp"
#include "emulator/memory.hpp"
#include "emulator/random.hpp"
#include "emulator/tensor_map.hpp"

namespace vcattn::emulator {

class Copies {
 public:
  Copies(GlobalMemory& global, SharedMemory& shared, Mbarriers& mbarriers, Random& random)
      : global_(global), shared_(shared), mbarriers_(mbarriers), random_(random) {}

  void start_bytes(std::uint64_t to, std::uint64_t from, std::uint32_t bytes, std::uint64_t barrier, Clock const& clock);
  /// clock: of the warp that starts it. Returns the bytes of the box.
  std::uint32_t start_box(std::uint64_t to, std::uint64_t map, std::int32_t column, std::int32_t row, std::uint64_t barrier,
                          Clock const& clock);

  bool pending() const { return !pending_.empty(); }
  /// Completes one of those under way, if it is not a slow one. Returns the bytes that it brought.
  std::uint32_t complete_one(bool slow_ones);

 private:
  struct Copy {
    std::uint64_t to, from;  // from: bytes, or a tensor map
    std::uint32_t bytes;
    std::uint64_t barrier;
    bool box, slow;
    std::int32_t column, row;
    Clock clock;
  };

  void start(Copy const& copy);
  void copy_box(Copy const& copy);

  GlobalMemory& global_;
  SharedMemory& shared_;
  Mbarriers& mbarriers_;
  Random& random_;
  std::vector<Copy> pending_;
};

/// Copies that the threads of a warp have started themselves (cp.async). The destination may not be touched before its thread has waited.
class ThreadCopies {
 public:
  /// `there` of the `bytes` come from global memory, zeros behind them.
  void start(GlobalMemory& global, SharedMemory& shared, std::uint32_t lane, std::uint64_t to, std::uint64_t from, std::uint32_t bytes,
             std::uint32_t there);
  void commit(Mask lanes);
  /// Until each of the lanes has at most `groups` committed ones under way.
  void wait(GlobalMemory& global, SharedMemory& shared, Mask lanes, std::uint32_t groups, Stamp writer);
  bool pending() const { return !pending_.empty(); }

 private:
  struct Copy {
    std::uint32_t lane, group;
    std::uint64_t to, from;
    std::uint32_t bytes, there;
  };

  std::vector<Copy> pending_;
  std::uint32_t open_group_[kLanes] = {};
};

}  // namespace vcattn::emulator
