#pragma once

// bf16 and fp16 as raw bits: IEEE 754 conversions from and to FP32, round to nearest even; overflow gives infinity, NaN stays a (quiet)
// NaN.

#include "core/config.hpp"

namespace vcattn::core {

VCATTN_HD constexpr float bf16_decode(std::uint16_t code) { return f32_from_bits(static_cast<std::uint32_t>(code) << 16); }

VCATTN_HD constexpr std::uint16_t bf16_encode(float x) {
  std::uint32_t const u = f32_bits(x);
  if (is_nan(x)) return static_cast<std::uint16_t>((u >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

VCATTN_HD constexpr float fp16_decode(std::uint16_t code) {
  std::uint32_t const sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  std::uint32_t const magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00u) return f32_from_bits(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  if (magnitude < 0x0400u) {  // subnormal: multiples of 2^-24
    float const value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return f32_from_bits(sign | ((magnitude << 13) + (112u << 23)));
}

VCATTN_HD constexpr std::uint16_t fp16_encode(float x) {
  std::uint32_t const sign = (f32_bits(x) >> 16) & 0x8000u;
  std::uint32_t const a = f32_bits(x) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | ((a >> 13) & 0x3FFu));
  if (a >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to infinity
  if (a < 0x38800000u) {                                                    // below 2^-14: 0.5 has an ulp of 2^-24
    return static_cast<std::uint16_t>(sign | (f32_bits(f32_from_bits(a) + 0.5f) - f32_bits(0.5f)));
  }
  return static_cast<std::uint16_t>(sign | ((a + 0xFFFu + ((a >> 13) & 1u) - (112u << 23)) >> 13));
}

VCATTN_HD constexpr float bf16_round(float x) { return bf16_decode(bf16_encode(x)); }
VCATTN_HD constexpr float fp16_round(float x) { return fp16_decode(fp16_encode(x)); }

}  // namespace vcattn::core
