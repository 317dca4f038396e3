#include "reference/probabilities.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "reference/codecs.hpp"
#include "reference/stages.hpp"

namespace vcattn::reference {

namespace {

constexpr double kCodeOfOne = 56;                                                  // E4M3 code of 1.0
double const kExpCastBias = -2 * std::log(std::numbers::ln2) - std::numbers::ln2;  // [EQ-LSE-BIAS]

double exp2_of_codes(double t) { return std::exp2(t / 8); }

/// Multiplies NVFP4 probabilities so that the row maximum meets the largest value that two levels can hold.
double nvfp4_factor(Options const& options) { return options.prob == ProbFormat::nvfp4_two_level ? 448.0 * 6.0 : 1.0; }

}  // namespace

std::uint8_t probability_code(ExpForm form, double t) {
  double code = 0;
  switch (form) {
    case ExpForm::exp:
      return static_cast<std::uint8_t>(e4m3().encode(exp2_of_codes(t - kCodeOfOne)));
    case ExpForm::affine: {
      double const fp16_bits =
          std::max(0.0, round_to_even(128 * t + 8192));  // a logarithm as well: 1,024 codes per octave, bias 15 against 7
      return static_cast<std::uint8_t>(e4m3().encode(fp16().decode(static_cast<std::uint32_t>(fp16_bits))));
    }
    case ExpForm::paper:
      code = std::clamp(round_to_even(t), 0.0, 120.0);
      break;
    case ExpForm::offset126:
      code = std::max(round_to_even(t), 0.0);
      break;
    case ExpForm::two_line: {
      double const slope = 0.300048828125;  // FP16(0.3)
      double const line = round_to_even(t);
      code = std::max({line, round_to_even(line * slope + 5), 0.0});
      break;
    }
  }
  return static_cast<std::uint8_t>(code);
}

bool has_head_room(Options const& options) {
  return options.prob == ProbFormat::e4m3 && (options.exp_form == ExpForm::offset126 || options.exp_form == ExpForm::two_line);
}

namespace {

/// [EQ-TOP-ALIGN] In FP32, whose roundings decide between candidates that are nearly equal.
float aligned_row_constant(int top_code, float row_max) {
  float const bias = static_cast<float>(std::exp(kExpCastBias));
  float best = 0;
  float smallest_error = std::numeric_limits<float>::infinity();
  float const below = std::nearbyint((std::ceil(row_max) - row_max) * 64) / 64;
  for (int j = 0; j <= 6 && j < top_code; ++j) {
    float const candidate = static_cast<float>(top_code - j) - std::ceil(row_max);
    float const t = static_cast<float>(top_code - j) - below;
    float const code = std::nearbyint(t);
    float const mantissa = static_cast<float>(static_cast<int>(code) & 7) / 8;
    float const ripple = (1 + mantissa) * std::exp2(-mantissa) / bias;
    float const decoded = ripple * std::fma(code - t, static_cast<float>(std::numbers::ln2 / 8), 1.0f);
    float const error = std::abs(decoded - 1) + 0.002f * static_cast<float>(j);
    if (error < smallest_error) {
      smallest_error = error;
      best = candidate;
    }
  }
  return best;
}

}  // namespace

double row_constant(Options const& options, bool f16_scores, double row_max) {
  if (options.prob != ProbFormat::e4m3) return -row_max;
  if (options.exp_form == ExpForm::paper) return 119.65 - row_max;
  if (has_head_room(options) && f16_scores) return static_cast<double>(aligned_row_constant(options.top_code, static_cast<float>(row_max)));
  if (options.exp_form != ExpForm::exp) return options.top_code - row_max;
  return 8 * std::log2(e4m3().decode(static_cast<std::uint32_t>(options.top_code))) + kCodeOfOne - row_max;
}

std::vector<double> decoded_probabilities(Options const& options, std::vector<double> const& t) {
  std::vector<double> p(t.size());
  auto const apply = [&](auto const& function) { std::transform(t.begin(), t.end(), p.begin(), function); };
  switch (options.prob) {
    case ProbFormat::f32:
      apply(exp2_of_codes);
      break;
    case ProbFormat::bf16:
      apply([](double x) { return bf16().round(exp2_of_codes(x)); });
      break;
    case ProbFormat::e4m3:
      apply([&](double x) { return e4m3().decode(probability_code(options.exp_form, x)); });
      break;
    case ProbFormat::nvfp4:
    case ProbFormat::nvfp4_two_level: {
      apply([&](double x) { return exp2_of_codes(x) * nvfp4_factor(options); });
      auto const keys = static_cast<std::int64_t>(p.size());
      auto const padded_keys = (keys + kScaleFactorGroup - 1) / kScaleFactorGroup * kScaleFactorGroup;
      Matrix row(1, padded_keys);
      std::copy(p.begin(), p.end(), row.data.begin());
      Coded const coded = encode_rows(row, CodeFormat::nvfp4, {{1.0f}, 1});
      std::copy_n(coded.values.data.begin(), keys, p.begin());
      break;
    }
  }
  return p;
}

double log_sum_exp(Options const& options, double row_sum, double row_const, double correction) {
  bool const e4m3_codes = options.prob == ProbFormat::e4m3;
  double const code_of_one = e4m3_codes ? kCodeOfOne : 0.0;
  double const bias = e4m3_codes && options.exp_form != ExpForm::exp ? kExpCastBias : 0.0;
  return std::log(row_sum / nvfp4_factor(options)) - (row_const - code_of_one) * std::numbers::ln2 / 8 - bias + correction;
}

}  // namespace vcattn::reference
