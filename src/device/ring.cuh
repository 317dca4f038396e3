#pragma once

// Position in a ring of buffers that are filled and emptied in order; each buffer has a `full` and an `empty` mbarrier.

#include <cstdint>

namespace vcattn::device {

template <int kStages>
struct RingPosition {
  int stage = 0;
  std::uint32_t round = 0;  // parity of the rounds through the ring so far

  /// Parity to wait for on `full` (consumer). The producer waits for `empty` with the other one: that wait passes in the first round.
  __device__ std::uint32_t full_parity() const { return round; }
  __device__ std::uint32_t empty_parity() const { return round ^ 1u; }
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      round ^= 1u;
    }
  }
};

}  // namespace vcattn::device
