#pragma once

// E4M3 (OCP FP8, "fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, NaN = 0x7F / 0xFF, largest finite 448 = 0x7E. [EQ-E4M3]
// Encoding rounds to nearest even, saturates (infinity too) and keeps NaN: the semantics of cvt.rn.satfinite.e4m3x2.f32.
// UE4M3, the NVFP4 block scale, is the same without a sign: negative values encode to 0.

#include "core/config.hpp"

namespace vcattn::core {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint8_t kE4m3Nan = 0x7F;
inline constexpr int kE4m3TopCode = 126;

VCATTN_HD constexpr float e4m3_decode(std::uint8_t code) {
  std::uint32_t const magnitude = code & 0x7Fu;
  float value = 0.0f;
  if (magnitude == 0x7Fu) {
    value = f32_from_bits(0x7FC00000u);
  } else if (magnitude < 8u) {
    value = static_cast<float>(magnitude) * 0x1p-9f;
  } else {
    value = f32_from_bits((magnitude << 20) + (120u << 23));
  }
  return (code & 0x80u) != 0 ? -value : value;
}

VCATTN_HD constexpr std::uint8_t e4m3_encode(float x) {
  std::uint32_t const sign = (f32_bits(x) >> 24) & 0x80u;
  std::uint32_t a = f32_bits(x) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return static_cast<std::uint8_t>(sign | kE4m3Nan);
  if (a > f32_bits(kE4m3Max)) a = f32_bits(kE4m3Max);
  if (a < f32_bits(0x1p-6f)) {  // subnormal: 2^14 has an ulp of 2^-9
    return static_cast<std::uint8_t>(sign | (f32_bits(f32_from_bits(a) + 0x1p14f) - f32_bits(0x1p14f)));
  }
  return static_cast<std::uint8_t>(sign | ((a + 0x7FFFFu + ((a >> 20) & 1u) - (120u << 23)) >> 20));
}

VCATTN_HD constexpr float ue4m3_decode(std::uint8_t code) { return e4m3_decode(code & 0x7Fu); }
VCATTN_HD constexpr std::uint8_t ue4m3_encode(float x) {
  return x < 0.0f ? std::uint8_t{0} : static_cast<std::uint8_t>(e4m3_encode(x) & 0x7Fu);
}

}  // namespace vcattn::core
