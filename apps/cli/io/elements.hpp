#pragma once

// FP16 and BF16 elements of caller tensors as FP32 numbers, for statistics and figures.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vcattn/types.hpp"

namespace vcattn::cli {

inline float decode_bf16(std::uint16_t code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }

/// Round to nearest even; finite values only.
inline std::uint16_t encode_bf16(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float decode_f16(std::uint16_t code) {
  std::uint32_t const sign = (code & 0x8000u) << 16;
  std::uint32_t const exponent = (code >> 10) & 0x1Fu;
  std::uint32_t const fraction = code & 0x3FFu;
  float magnitude;
  if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-24f;
  } else {
    std::uint32_t const wide_exponent = exponent == 31 ? 255 : exponent + 112;
    magnitude = std::bit_cast<float>((wide_exponent << 23) | (fraction << 13));
  }
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

/// Element at `index` (in elements) of a buffer of that type; no alignment is required.
inline float load_element(void const* data, DType dtype, std::int64_t index) {
  auto const* const address = static_cast<std::byte const*>(data) + index * dtype_bytes(dtype);
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, address, sizeof value);
    return value;
  }
  std::uint16_t code;
  std::memcpy(&code, address, sizeof code);
  return dtype == DType::f16 ? decode_f16(code) : decode_bf16(code);
}

}  // namespace vcattn::cli
