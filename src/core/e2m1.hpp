#pragma once

// E2M1 (OCP FP4): 1 sign, 2 exponent (bias 1), 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6. [EQ-E2M1]
// Encoding rounds to nearest even and saturates. The format has no NaN: NaN encodes to +6 like cvt.rn.satfinite.e2m1x2.f32, and a NaN block
// is carried by its UE4M3 scale instead.

#include "core/config.hpp"

namespace vcattn::core {

inline constexpr float kE2m1Max = 6.0f;

VCATTN_HD constexpr float e2m1_decode(std::uint8_t code) {
  std::uint32_t const magnitude = code & 0x7u;
  float const value = magnitude < 2u ? static_cast<float>(magnitude) * 0.5f : f32_from_bits((magnitude << 22) + (126u << 23));
  return (code & 0x8u) != 0 ? -value : value;
}

VCATTN_HD constexpr std::uint8_t e2m1_encode(float x) {
  std::uint32_t const sign = (f32_bits(x) >> 28) & 0x8u;
  std::uint32_t a = f32_bits(x) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0x7u;
  if (a > f32_bits(kE2m1Max)) a = f32_bits(kE2m1Max);
  if (a < f32_bits(1.0f)) {  // subnormal: 2^22 has an ulp of 0.5
    return static_cast<std::uint8_t>(sign | (f32_bits(f32_from_bits(a) + 0x1p22f) - f32_bits(0x1p22f)));
  }
  return static_cast<std::uint8_t>(sign | ((a + 0x1FFFFFu + ((a >> 22) & 1u) - (126u << 23)) >> 22));
}

/// The E2M1 number nearest to |x|, as e2m1_encode() rounds, for code without a conversion instruction.
struct E2m1Magnitude {
  std::uint32_t code;  // in the low four bits; those above are of no meaning
  float value;
};
VCATTN_HD constexpr E2m1Magnitude e2m1_magnitude(float x) {
  // Beside binade * 2^22 an ulp is the step of E2M1 in that binade. With six steps more the exponent leaves nothing in the low four bits of
  // `code`.
  constexpr float kMagic = 0x1p22f + 3.0f;
  float const a = min_f32(__builtin_fabsf(x), kE2m1Max);  // 6 for NaN
  float const binade = f32_from_bits(f32_bits(max_f32(a, 1.0f)) & 0x7F800000u);
  float const sum = fma_f32(binade, kMagic, a);
  return {f32_bits(sum) + (f32_bits(sum) >> 22), fma_f32(binade, -kMagic, sum)};
}

}  // namespace vcattn::core
