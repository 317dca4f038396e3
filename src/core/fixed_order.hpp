#pragma once

// Sums whose order is fixed, so that the CPU and every GPU agree to the bit. [EQ-FIXED-ORDER]
//
// Over rows (means of V blocks, mean of K): partial k adds rows k, k + P, k + 2P, ... in ascending order, starting from +0; the P partials
// are then added as a tree with strides P/2, P/4, ... 1. P = kRowPartials inside a tile of 128 rows (or a block of 32 or 64),
// kTilePartials over the tiles of a sequence.
// Over channels (dot products of a row): lane l owns channels 4l .. 4l+3 (a product, then three fused multiply-adds); the lanes are added
// as a tree with strides L/2 ... 1, which is what a butterfly shuffle does.

#include "core/config.hpp"

namespace vcattn::core {

inline constexpr int kRowPartials = 8;
inline constexpr int kTilePartials = 32;
inline constexpr int kChannelsPerLane = 4;

/// Adds partials[0..count) as a tree with strides count/2 .. 1; count a power of two. Destroys the partials.
VCATTN_HD constexpr float tree_sum(float* partials, int count) {
  for (int stride = count / 2; stride >= 1; stride /= 2) {
    for (int i = 0; i < stride; ++i) partials[i] += partials[i + stride];
  }
  return partials[0];
}

/// Dot product of two rows of n channels, n a multiple of 4 whose quarter is a power of two (n <= 256).
VCATTN_HD constexpr float lane_dot(float const* a, float const* b, int n) {
  float lanes[64] = {};
  int const count = n / kChannelsPerLane;
  for (int l = 0; l < count; ++l) {
    float sum = a[4 * l] * b[4 * l];
    for (int c = 1; c < kChannelsPerLane; ++c) sum = fma_f32(a[4 * l + c], b[4 * l + c], sum);
    lanes[l] = sum;
  }
  return tree_sum(lanes, count);
}

}  // namespace vcattn::core
