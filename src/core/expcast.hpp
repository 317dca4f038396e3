#pragma once

// ExpCast: an E4M3 byte is already a logarithm, so a score in code units (1/8 octave) becomes a probability byte by one fused multiply-add.
// All forms read t = score * factor + row_constant, with factor chosen so that t counts E4M3 codes: v = 2^((t - 56) / 8).
// The row constant is top - max in code units (an integer for offset126 and two_line). Public derivation: docs/equations.md.

#include "core/e4m3.hpp"
#include "core/half.hpp"

namespace vcattn::core {

inline constexpr float kCodesPerNat = 11.541560327111707f;   // 8 log2(e)
inline constexpr float kNatsPerCode = 0.08664339756999316f;  // ln(2) / 8
inline constexpr float kCodeOfOne = 56.0f;                   // E4M3 code of 1.0

inline constexpr float kPaperOffset = 119.65f;  // arXiv 2609.15810: 8 * 8 + 56 - 0.35
inline constexpr float kPaperTopCode = 120.0f;  // 256.0

inline constexpr float kTwoLineSlope = 0.300048828125f;  // 0.3 rounded to FP16, so that the packed-half kernel agrees to the bit
inline constexpr float kTwoLineOffset = 5.0f;

/// ln of the mean over one octave of linear-mantissa decoding (1 + f) against 2^f: what decoded row sums are too large by. [EQ-LSE-BIAS]
/// = ln(1 / (2 ln(2)^2)) = -2 ln(ln 2) - ln 2.
inline constexpr float kExpCastLogBias = 0.03987866f;

// The _code functions return the code as a float (vectorised back ends stay in floating point), the others the byte.

/// [EQ-EXPCAST-PAPER] row_constant = 119.65 - max (any real); result 0..120.
VCATTN_HD constexpr float expcast_paper_code(float score, float factor, float row_constant) {
  float const t = fma_f32(score, factor, row_constant);
  return rint_small(max_f32(0.0f, min_f32(t, kPaperTopCode)));
}

/// Nearest integer code of the line, ties to even, held inside +-2048 where a packed-half kernel is exact (smaller values flush to 0
/// anyway).
VCATTN_HD constexpr float expcast_line(float score, float factor, float row_constant) {
  float const t = fma_f32(score, factor, row_constant);
  return rint_small(max_f32(-2048.0f, min_f32(t, static_cast<float>(kE4m3TopCode))));
}

/// [EQ-EXPCAST-OFFSET] row_constant an integer <= 126 - max; result 0..126.
VCATTN_HD constexpr float expcast_offset_code(float score, float factor, float row_constant) {
  return max_f32(0.0f, expcast_line(score, factor, row_constant));
}

/// [EQ-EXPCAST-TWOLINE] the lower line carries the subnormal codes; result 0..126.
VCATTN_HD constexpr float expcast_two_line_code(float score, float factor, float row_constant) {
  float const t = expcast_line(score, factor, row_constant);
  float const lower = rint_small(fma_f32(t, kTwoLineSlope, kTwoLineOffset));
  return max_f32(t, max_f32(0.0f, lower));
}

/// [EQ-EXPCAST-AFFINE] builds the bits of an FP16 number (1,024 steps per octave): true subnormals, no upper clamp. The value is converted
/// to E4M3 afterwards. row_constant as for the other forms (any real <= 126 - max); result 0..448.
VCATTN_HD constexpr float expcast_affine_value(float score, float factor, float row_constant) {
  constexpr float kStepsPerCode = 128.0f;      // an E4M3 code is 128 steps of FP16 bits
  constexpr float kFp16BitsOfCode0 = 8192.0f;  // fp16 bits = 128 * code + (15 - 7) * 1024
  float const base = kRoundMagic + fma_f32(row_constant, kStepsPerCode, kFp16BitsOfCode0);
  float const x = max_f32(fma_f32(score, factor * kStepsPerCode, base), kRoundMagic);
  return fp16_decode(static_cast<std::uint16_t>(f32_bits(x) & 0xFFFFu));
}

VCATTN_HD constexpr std::uint8_t expcast_paper(float score, float factor, float row_constant) {
  return static_cast<std::uint8_t>(expcast_paper_code(score, factor, row_constant));
}
VCATTN_HD constexpr std::uint8_t expcast_offset(float score, float factor, float row_constant) {
  return static_cast<std::uint8_t>(expcast_offset_code(score, factor, row_constant));
}
VCATTN_HD constexpr std::uint8_t expcast_two_line(float score, float factor, float row_constant) {
  return static_cast<std::uint8_t>(expcast_two_line_code(score, factor, row_constant));
}
VCATTN_HD constexpr std::uint8_t expcast_affine(float score, float factor, float row_constant) {
  return e4m3_encode(expcast_affine_value(score, factor, row_constant));
}

}  // namespace vcattn::core
