#pragma once

// Who knows of what: vector clocks. Component w counts the times that warp w let others know of its work (arrivals, barriers, copies that
// it started), component kWarps + b the phases of mbarrier b that have been seen to end. A word of shared memory carries the time of its
// writer; a warp whose clock is behind that time reads it by luck.

#include <algorithm>
#include <cstdint>

namespace vcattn::emulator {

struct Clock {
  static constexpr std::uint32_t kWarps = 32, kBarriers = 64;

  std::uint32_t time[kWarps + kBarriers] = {};

  void join(Clock const& other) {
    for (std::uint32_t i = 0; i < kWarps + kBarriers; ++i) time[i] = std::max(time[i], other.time[i]);
  }
};

/// A moment of one component.
struct Stamp {
  std::uint32_t component = 0, time = 0;

  bool is_known_to(Clock const& clock) const { return clock.time[component] >= time; }
};

}  // namespace vcattn::emulator
