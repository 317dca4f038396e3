#pragma once

// Rotary embedding of one row, in place. [EQ-ROPE]
// (x, y) -> (fma(x, c, -(y s)), fma(y, c, x s)): this order of roundings is part of the numerical contract.

#include "core/config.hpp"

namespace vcattn::core {

/// row: the first rotated channel; cos, sin: rotary_dim / 2 floats of this position.
VCATTN_HD constexpr void rope_row(float* row, float const* cos, float const* sin, int rotary_dim, bool interleaved) {
  int const half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    float& x = row[interleaved ? 2 * i : i];
    float& y = row[interleaved ? 2 * i + 1 : i + half];
    float const x0 = x;
    float const y0 = y;
    x = fma_f32(x0, cos[i], -(y0 * sin[i]));
    y = fma_f32(y0, cos[i], x0 * sin[i]);
  }
}

}  // namespace vcattn::core
