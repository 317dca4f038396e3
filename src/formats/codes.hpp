#pragma once

// Rows of codes in memory: encode and decode n consecutive values of one format.

#include <cstdint>
#include <cstring>

#include "core/e4m3.hpp"
#include "core/half.hpp"
#include "core/nvfp4.hpp"
#include "vcattn/options.hpp"

namespace vcattn::formats {

inline constexpr float kInt8Max = 127.0f;

/// Code formats of Q, K and V under one roof.
enum class CodeFormat : std::uint8_t { f32, bf16, e4m3, int8, nvfp4 };

constexpr CodeFormat code_format(QkFormat format) {
  switch (format) {
    case QkFormat::f32:
      return CodeFormat::f32;
    case QkFormat::bf16:
      return CodeFormat::bf16;
    case QkFormat::e4m3:
      return CodeFormat::e4m3;
    case QkFormat::int8:
      return CodeFormat::int8;
    case QkFormat::nvfp4:
      return CodeFormat::nvfp4;
  }
  return CodeFormat::f32;
}
constexpr CodeFormat code_format(VFormat format) {
  switch (format) {
    case VFormat::f32:
      return CodeFormat::f32;
    case VFormat::bf16:
      return CodeFormat::bf16;
    case VFormat::e4m3:
      return CodeFormat::e4m3;
    case VFormat::nvfp4:
      return CodeFormat::nvfp4;
  }
  return CodeFormat::f32;
}
constexpr int code_bits(CodeFormat format) {
  return format == CodeFormat::f32 ? 32 : format == CodeFormat::bf16 ? 16 : format == CodeFormat::nvfp4 ? 4 : 8;
}
/// Largest magnitude of a format with an FP32 descale; 0 where there is none (f32, bf16).
constexpr float code_max(CodeFormat format) {
  return format == CodeFormat::e4m3    ? core::kE4m3Max
         : format == CodeFormat::int8  ? kInt8Max
         : format == CodeFormat::nvfp4 ? core::kNvfp4Range
                                       : 0.0f;
}
/// amax / code_max, 1 for blocks that count as zero and for formats without a descale. [EQ-AMAX]
constexpr float descale_of(CodeFormat format, float amax) {
  return code_max(format) == 0.0f || amax < core::kAmaxFloor ? 1.0f : amax / code_max(format);
}

/// NVFP4: block scales of n values times `inverse` (1 / descale), n a multiple of 16. [EQ-NVFP4]
inline void nvfp4_scale_factors(float const* values, int n, float inverse, std::uint8_t* scale_factors) {
  for (int g = 0; g < n; g += core::kNvfp4Group) {
    float amax16 = 0.0f;
    for (int i = g; i < g + core::kNvfp4Group; ++i) amax16 = core::max_f32(amax16, core::abs_f32(values[i] * inverse));
    scale_factors[g / core::kNvfp4Group] = core::nvfp4_block_scale(amax16);
  }
}

/// Encodes n values times `inverse` (1 / descale). NVFP4: scale_factors holds the block scales; two codes per byte, the even one low.
inline void encode_codes(CodeFormat format, float const* values, int n, float inverse, std::uint8_t const* scale_factors,
                         std::byte* codes) {
  auto* const bytes = reinterpret_cast<std::uint8_t*>(codes);
  switch (format) {
    case CodeFormat::f32:
      std::memcpy(codes, values, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case CodeFormat::bf16:
      for (int i = 0; i < n; ++i) {
        std::uint16_t const code = core::bf16_encode(values[i]);
        std::memcpy(codes + 2 * i, &code, sizeof code);
      }
      return;
    case CodeFormat::e4m3:
      for (int i = 0; i < n; ++i) bytes[i] = core::e4m3_encode(values[i] * inverse);
      return;
    case CodeFormat::int8:
      for (int i = 0; i < n; ++i) {
        float const clamped = core::min_f32(core::max_f32(values[i] * inverse, -kInt8Max), kInt8Max);
        bytes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(core::rint_small(clamped)));
      }
      return;
    case CodeFormat::nvfp4:
      for (int i = 0; i < n; i += 2) {
        float const block_inverse = core::nvfp4_block_inverse(scale_factors[i / core::kNvfp4Group]);
        unsigned const low = core::e2m1_encode(values[i] * inverse * block_inverse);
        unsigned const high = core::e2m1_encode(values[i + 1] * inverse * block_inverse);
        bytes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
      }
      return;
  }
}

/// Block scales where the format has them, then codes.
inline void encode_row(CodeFormat format, float const* values, int n, float inverse, std::byte* codes, std::uint8_t* scale_factors) {
  if (format == CodeFormat::nvfp4) nvfp4_scale_factors(values, n, inverse, scale_factors);
  encode_codes(format, values, n, inverse, scale_factors, codes);
}

/// Decodes n codes to values in units of the FP32 descale (NVFP4: block scale applied).
inline void decode_row(CodeFormat format, std::byte const* codes, std::uint8_t const* scale_factors, int n, float* values) {
  auto const* const bytes = reinterpret_cast<std::uint8_t const*>(codes);
  switch (format) {
    case CodeFormat::f32:
      std::memcpy(values, codes, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case CodeFormat::bf16:
      for (int i = 0; i < n; ++i) {
        std::uint16_t code = 0;
        std::memcpy(&code, codes + 2 * i, sizeof code);
        values[i] = core::bf16_decode(code);
      }
      return;
    case CodeFormat::e4m3:
      for (int i = 0; i < n; ++i) values[i] = core::e4m3_decode(bytes[i]);
      return;
    case CodeFormat::int8:
      for (int i = 0; i < n; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i]));
      return;
    case CodeFormat::nvfp4:
      for (int i = 0; i < n; ++i) {
        auto const code = static_cast<std::uint8_t>((bytes[i / 2] >> (4 * (i & 1))) & 0xF);
        values[i] = core::e2m1_decode(code) * core::ue4m3_decode(scale_factors[i / core::kNvfp4Group]);
      }
      return;
  }
}

}  // namespace vcattn::formats
