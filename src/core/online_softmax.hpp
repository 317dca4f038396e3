#pragma once

// Online softmax in code units (1/8 octave): a row keeps its maximum M and a row constant T, probabilities are 2^((x + T - reference) / 8).

#include <cmath>

#include "core/expcast.hpp"
#include "vcattn/options.hpp"

namespace vcattn::core {

/// Where 1.0 lies: E4M3 probabilities are codes (56 = 1.0), the others plain numbers.
VCATTN_HD constexpr float reference_code(ProbFormat prob) { return prob == ProbFormat::e4m3 ? kCodeOfOne : 0.0f; }

/// Position 8 log2(v) + 56 of the value v of an E4M3 code on the logarithmic axis. [EQ-EXP]
VCATTN_HD float log_position(int top_code) { return kCodeOfOne + 8.0f * std::log2(e4m3_decode(static_cast<std::uint8_t>(top_code))); }

/// Whether the row constant moves only when a score would pass code 126: the head-room forms.
VCATTN_HD constexpr bool has_head_room(ExpForm form) { return form == ExpForm::offset126 || form == ExpForm::two_line; }

inline constexpr int kTopFractions = 64;  // steps in which [EQ-TOP-ALIGN] looks at the fraction of a row maximum

/// j of [EQ-TOP-ALIGN] for a row maximum that lies `fraction` / 64 below an integer: how many codes below `top_code` that integer goes.
/// The code of the row maximum is off by its rounding and by the linear mantissa, up to 6 % together, and a peaked row feels that in full.
/// Of the kTopCandidates integers that put the maximum at top, top - 1, ... the one whose two errors cancel best is taken.
VCATTN_HD constexpr int top_offset(int top_code, int fraction) {
  constexpr int kTopCandidates = 7;
  constexpr float kTailCost = 0.002f;  // per code: each one flushes 0.087 nats of the tail
  // (1 + m/8) 2^(-m/8) over its mean: decoded value of mantissa m against the logarithmic axis.
  constexpr float kRipple[8] = {0.9609060f, 0.9912991f, 1.0100280f, 1.0188198f, 1.0191948f, 1.0124895f, 0.9998767f, 0.9823832f};
  int best = 0;
  float best_error = 2.0f;
  for (int j = 0; j < kTopCandidates && j < top_code; ++j) {
    float const t = static_cast<float>(top_code - j) - static_cast<float>(fraction) / kTopFractions;
    float const code = rint_small(t);
    float const decoded = kRipple[static_cast<int>(code) & 7] * fma_f32(code - t, kNatsPerCode, 1.0f);
    float const error = abs_f32(decoded - 1.0f) + kTailCost * static_cast<float>(j);
    if (error < best_error) {
      best_error = error;
      best = j;
    }
  }
  return best;
}

/// Fraction of [EQ-TOP-ALIGN]: how far a row maximum lies below the integer above it.
VCATTN_HD int top_fraction(float row_max) { return static_cast<int>(rint_small((std::ceil(row_max) - row_max) * kTopFractions)); }

/// Integer row constant of FP16 scores, which are added to it in packed halves. [EQ-TOP-ALIGN]
VCATTN_HD float aligned_integer_constant(int top_code, float row_max) {
  return static_cast<float>(top_code - top_offset(top_code, top_fraction(row_max))) - std::ceil(row_max);
}

/// Row constant after the running maximum became `row_max`.
template <typename T>
VCATTN_HD T next_row_constant(ProbFormat prob, ExpForm form, int top_code, bool f16_scores, T row_max, T old_constant, bool first) {
  T const top = static_cast<T>(top_code);
  if (has_head_room(form)) {  // [EQ-EXPCAST-OFFSET] [EQ-EXPCAST-TWOLINE]
    bool const stale = !first && (f16_scores ? std::ceil(row_max) : row_max) + old_constant <= static_cast<T>(kE4m3TopCode);
    if (stale) return old_constant;
    return f16_scores ? static_cast<T>(aligned_integer_constant(top_code, static_cast<float>(row_max))) : top - row_max;
  }
  if (form == ExpForm::paper) return static_cast<T>(kPaperOffset) - row_max;              // [EQ-EXPCAST-PAPER]
  if (form == ExpForm::affine) return top - row_max;                                      // [EQ-EXPCAST-AFFINE]
  if (prob == ProbFormat::e4m3) return static_cast<T>(log_position(top_code)) - row_max;  // [EQ-EXP]
  return -row_max;
}

/// 2^(delta / 8): what O and l are multiplied by when the row constant moves by delta. [EQ-RESCALE]
template <typename T>
VCATTN_HD T rescale_factor(T delta) {
  return std::exp2(delta / T{8});
}

/// Mean logarithmic excess of decoded row sums. [EQ-LSE-BIAS]
VCATTN_HD constexpr float log_bias(ExpForm form) { return form == ExpForm::exp ? 0.0f : kExpCastLogBias; }

/// ln of the sum of exp(score) from a row sum and its constant, without the K-mean correction. [EQ-LSE]
template <typename T>
VCATTN_HD T log_sum_exp(ProbFormat prob, ExpForm form, T row_sum, T row_constant) {
  T const nats_per_code = static_cast<T>(0.086643397569993163677L);
  T const range = prob == ProbFormat::nvfp4_two_level ? std::log(static_cast<T>(kE4m3Max * 6.0f)) : T{0};
  return std::log(row_sum) - (row_constant - static_cast<T>(reference_code(prob))) * nats_per_code - range - static_cast<T>(log_bias(form));
}

}  // namespace vcattn::core
