#pragma once

// Orthonormal Sylvester-Hadamard transform of one row, in place. [EQ-HADAMARD]
// Butterfly order is part of the numerical contract: strides 1, 2, 4, ... n/2, then one multiplication by FP32(1 / sqrt(n)).

#include "core/config.hpp"

namespace vcattn::core {

/// FP32(1 / sqrt(n)) for n = 2^k.
VCATTN_HD constexpr float hadamard_norm(int n) {
  float norm = 1.0f;
  int m = n;
  for (; m >= 4; m /= 4) norm *= 0.5f;
  return m == 2 ? norm * 0.70710678118654752440f : norm;
}

/// row: n floats, n a power of two.
VCATTN_HD constexpr void hadamard_row(float* row, int n) {
  for (int stride = 1; stride < n; stride *= 2) {
    for (int base = 0; base < n; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        float const a = row[i];
        float const b = row[i + stride];
        row[i] = a + b;
        row[i + stride] = a - b;
      }
    }
  }
  float const norm = hadamard_norm(n);
  for (int i = 0; i < n; ++i) row[i] *= norm;
}

}  // namespace vcattn::core
