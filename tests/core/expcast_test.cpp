// ExpCast forms against their definition in real arithmetic, the packed-half kernel, and the published figures of the method.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include "core/expcast.hpp"
#include "reference/codecs.hpp"
#include "reference/probabilities.hpp"

namespace vcattn {
namespace {

using reference::probability_code;
using reference::round_to_even;

static_assert(core::expcast_paper(0.0f, 1.0f, core::kPaperOffset) == 120);
static_assert(core::expcast_offset(0.0f, 1.0f, 126.0f) == 126);
static_assert(core::expcast_two_line(-126.0f, 1.0f, 126.0f) == 5);
static_assert(core::expcast_affine(0.0f, 1.0f, 126.0f) == 126);

constexpr double kCodesPerNat = 8 * std::numbers::log2e;
constexpr double kLowestU = -14.0;  // nats below the row maximum

struct Form {
  ExpForm form;
  std::uint8_t (*encode)(float score, float factor, float row_constant);
  float row_constant;  // for a row maximum of 0
  char const* name;
};
Form const kForms[] = {
    {ExpForm::paper, core::expcast_paper, core::kPaperOffset, "paper"},
    {ExpForm::offset126, core::expcast_offset, 126.0f, "offset126"},
    {ExpForm::two_line, core::expcast_two_line, 126.0f, "two_line"},
    {ExpForm::affine, core::expcast_affine, 126.0f, "affine"},
};

auto const kNameOf = [](testing::TestParamInfo<Form> const& param) { return std::string(param.param.name); };

class ExpCastForm : public testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Forms, ExpCastForm, testing::ValuesIn(kForms), kNameOf);

/// Forms that round t itself to an integer code.
class ExpCastLine : public ExpCastForm {};
INSTANTIATE_TEST_SUITE_P(Forms, ExpCastLine, testing::Values(kForms[0], kForms[1], kForms[2]), kNameOf);

/// Distance of t, in code units, to the nearest point where the form rounds to the other side.
double distance_to_tie(ExpForm form, double t) {
  double const steps_per_code = form == ExpForm::affine ? 128.0 : 1.0;
  return std::abs(std::abs(steps_per_code * t - round_to_even(steps_per_code * t)) - 0.5) / steps_per_code;
}

TEST_P(ExpCastForm, AgreesWithItsDefinitionOnADenseGrid) {
  auto const [form, encode, row_constant, name] = GetParam();
  for (float const factor : {1.0f, static_cast<float>(kCodesPerNat), 0.37f, 3.0f}) {
    int compared = 0;
    int total = 0;
    for (double u = 0; u >= kLowestU; u -= 1e-5) {
      auto const score = static_cast<float>(u * kCodesPerNat / static_cast<double>(factor));
      double const t = static_cast<double>(score) * static_cast<double>(factor) + static_cast<double>(row_constant);
      ++total;
      if (distance_to_tie(form, t) < 1e-5) continue;  // FP32 resolves t to 2^-18 below 128: such points may fall on either side
      ++compared;
      ASSERT_EQ(encode(score, factor, row_constant), probability_code(form, t)) << name << " t=" << t;
    }
    EXPECT_GT(compared, total * 99 / 100);
  }
}

/// The contract is one FP32 rounding of t, then the form: equal at every point of the grid, ties included.
TEST_P(ExpCastLine, IsOneFusedMultiplyAddThenTheForm) {
  auto const [form, encode, row_constant, name] = GetParam();
  for (float const factor : {static_cast<float>(kCodesPerNat), 0.37f, 3.0f}) {
    for (double u = 0; u >= kLowestU; u -= 1e-5) {
      auto const score = static_cast<float>(u * kCodesPerNat / static_cast<double>(factor));
      float const t = std::fma(score, factor, row_constant);
      ASSERT_EQ(encode(score, factor, row_constant), probability_code(form, static_cast<double>(t))) << name << " t=" << t;
    }
  }
}

/// The affine form rounds t to 1/128 code, the bits of an FP16 number, and that number to E4M3: every step, and the ties between steps.
TEST(ExpCastAffine, RoundsOnTheGridOfItsFp16Bits) {
  for (int half_step = -2 * 128 * 200; half_step <= 0; ++half_step) {
    float const score = static_cast<float>(half_step) / 256.0f;
    ASSERT_EQ(core::expcast_affine(score, 1.0f, 126.0f), probability_code(ExpForm::affine, static_cast<double>(score) + 126.0)) << score;
  }
}

TEST_P(ExpCastLine, TiesGoToTheEvenCode) {
  auto const [form, encode, row_constant, name] = GetParam();
  for (int code = -40; code < (form == ExpForm::paper ? 120 : 126); ++code) {
    float const tie = static_cast<float>(code) + 0.5f;  // t exactly, with a row constant of 0
    float const even = static_cast<float>(code + (code & 1));
    EXPECT_EQ(encode(tie, 1.0f, 0.0f), encode(even, 1.0f, 0.0f)) << name << " t=" << tie;
    EXPECT_EQ(encode(tie, 1.0f, 0.0f), probability_code(form, static_cast<double>(tie))) << name << " t=" << tie;
    EXPECT_EQ(encode(std::nextafter(tie, -1e9f), 1.0f, 0.0f), encode(static_cast<float>(code), 1.0f, 0.0f));
    EXPECT_EQ(encode(std::nextafter(tie, 1e9f), 1.0f, 0.0f), encode(static_cast<float>(code + 1), 1.0f, 0.0f));
  }
}

TEST_P(ExpCastForm, RisesWithTheScoreAndNeverPassesItsTop) {
  auto const [form, encode, row_constant, name] = GetParam();
  std::uint8_t last = 0;
  for (float score = -3000.0f; score <= 0.0f; score += 0.125f) {
    std::uint8_t const code = encode(score, 1.0f, row_constant);
    ASSERT_GE(code, last);
    last = code;
  }
  EXPECT_EQ(last, form == ExpForm::paper ? 120 : 126);
  EXPECT_EQ(encode(-std::numeric_limits<float>::max(), 1.0f, row_constant), encode(-2500.0f, 1.0f, row_constant));
  EXPECT_EQ(encode(-2500.0f, 1.0f, row_constant), 0);
}

/// A row maximum far from 0, as in a real row: only the FP32 rounding of the row constant may show.
TEST_P(ExpCastForm, WorksAtAnyRowMaximum) {
  auto const [form, encode, row_constant, name] = GetParam();
  bool const integer = form == ExpForm::offset126 || form == ExpForm::two_line;
  for (float const row_max : {-2000.25f, -33.3f, 0.7f, 512.6f, 3000.9f}) {
    float const constant = row_constant - (integer ? std::ceil(row_max) : row_max);
    for (double below = 0; below < 160; below += 0.0037) {
      auto const score = static_cast<float>(static_cast<double>(row_max) - below);
      double const t = static_cast<double>(score) + static_cast<double>(constant);
      double const noise = form == ExpForm::affine ? 1.0 / 128 : 1e-3;
      ASSERT_GE(encode(score, 1.0f, constant), probability_code(form, t - noise)) << name << " " << row_max << " " << below;
      ASSERT_LE(encode(score, 1.0f, constant), probability_code(form, std::min(t + noise, 126.0)))
          << name << " " << row_max << " " << below;
    }
  }
}

/// The kernel's arithmetic: t = fma(S, n 2^-24, K 2^-24) and fma.relu(t, 0.3, 5 * 2^-24) in FP16, whose subnormals count in 2^-24;
/// the larger bit pattern is the code.
std::uint32_t packed_half_two_line(double score, double n, double row_constant) {
  auto const& half = reference::fp16();
  double const slope = half.round(0.3);
  double const upper = half.round(score * (n * 0x1p-24) + row_constant * 0x1p-24);  // exact in double, rounded once
  double const lower = std::max(0.0, half.round(upper * slope + 5 * 0x1p-24));
  return half.encode(std::max(upper, lower));
}

TEST(ExpCastTwoLine, EqualsThePackedHalfKernelBitForBit) {
  EXPECT_EQ(static_cast<double>(core::kTwoLineSlope), reference::fp16().round(0.3));
  auto const& half = reference::fp16();
  long compared = 0;
  for (double const n : {1.0, 2.0, 3.0, 7.0, 16.0}) {
    for (double const row_max : {-1000.0, -130.5, -3.0, 0.0, 0.49, 99.0, 777.25, 1024.0}) {
      for (int const top : {126, 112}) {
        double const row_constant = top - std::ceil(row_max);
        for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
          double const score = half.decode(bits);
          if (!(std::abs(n * score) <= 1024.0) || n * score > row_max) continue;  // NaN, beyond the score bound, above the maximum
          auto const code = core::expcast_two_line(static_cast<float>(score), static_cast<float>(n), static_cast<float>(row_constant));
          ASSERT_EQ(code, packed_half_two_line(score, n, row_constant)) << "S=" << score << " n=" << n << " K=" << row_constant;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 1'000'000);
}

/// Decoded probability over the exact one, in logarithms, for t uniform in [low, high].
std::vector<double> log_ratios(std::function<double(double t)> const& decoded, double low, double high) {
  std::vector<double> ratios;
  for (double t = low; t < high; t += 1e-4) ratios.push_back(std::log(decoded(t)) - (t - 56) * std::numbers::ln2 / 8);
  return ratios;
}

double mean_of(std::vector<double> const& values, std::function<double(double)> const& f) {
  double sum = 0;
  for (double const x : values) sum += f(x);
  return sum / static_cast<double>(values.size());
}

TEST(ExpCastBias, IsTheMeanOfLinearMantissaDecoding) {
  double sum = 0;
  constexpr int kPoints = 1'000'000;
  for (int i = 0; i < kPoints; ++i) {
    double const f = (i + 0.5) / kPoints;
    sum += (1 + f) * std::exp2(-f);
  }
  EXPECT_NEAR(static_cast<double>(core::kExpCastLogBias), std::log(sum / kPoints), 1e-7);
}

/// Row sums of decoded bytes are too large by the bias, over whole octaves of normal codes.
TEST(ExpCastBias, IsWhatTheFormsShow) {
  for (Form const& form : kForms) {
    auto const decoded = [&](double t) { return reference::e4m3().decode(form.encode(static_cast<float>(t), 1.0f, 0.0f)); };
    double const bias = std::log(mean_of(log_ratios(decoded, 16, 112), [](double x) { return std::exp(x); }));
    EXPECT_NEAR(bias, static_cast<double>(core::kExpCastLogBias), 1e-3) << form.name;
  }
}

// Published figures of ExpCast with offset 119.65, to the digits printed.

double paper_decoded(double u) {
  return reference::e4m3().decode(core::expcast_paper(static_cast<float>(u), static_cast<float>(kCodesPerNat), core::kPaperOffset));
}

std::vector<double> errors_in_normal_range(std::function<double(double u)> const& decoded) {
  std::vector<double> errors;
  for (double u = -9.0; u < 0; u += 1e-6 * 9) errors.push_back(decoded(u) / (256 * std::exp(u)) - 1);
  return errors;
}

/// Bound of a row's total variation: tanh of a quarter of the oscillation of the logarithmic error.
double total_variation_bound(std::vector<double> const& errors) {
  auto const [low, high] = std::minmax_element(errors.begin(), errors.end());
  return std::tanh(std::log((1 + *high) / (1 + *low)) / 4);
}

TEST(ExpCastPaper, TotalVariationOfARow) {
  double const oscillation = std::log(1.5 / std::numbers::sqrt2) + std::numbers::ln2 / 8;
  EXPECT_NEAR(std::tanh(oscillation / 4), 0.0364, 5e-5);
  EXPECT_NEAR(total_variation_bound(errors_in_normal_range(paper_decoded)), std::tanh(oscillation / 4), 1e-5);
  auto const exp_then_round = [](double u) { return reference::e4m3().round(256 * std::exp(u)); };
  EXPECT_NEAR(total_variation_bound(errors_in_normal_range(exp_then_round)), 0.0294, 5e-5);
}

TEST(ExpCastPaper, ErrorOfOneElement) {
  std::vector<double> const errors = errors_in_normal_range(paper_decoded);
  auto const [low, high] = std::minmax_element(errors.begin(), errors.end());
  EXPECT_NEAR(*low, -0.0710, 5e-5);
  EXPECT_NEAR(*high, 0.0745, 5e-5);
  EXPECT_NEAR(std::sqrt(mean_of(errors, [](double x) { return x * x; })), 0.033, 5e-4);
}

TEST(ExpCastPaper, BytesEqualToExpThenRound) {
  long equal = 0;
  long total = 0;
  for (double u = -9.7; u < 0; u += 1e-5, ++total) {
    equal += core::expcast_paper(static_cast<float>(u), static_cast<float>(kCodesPerNat), core::kPaperOffset) ==
             reference::e4m3().encode(256 * std::exp(static_cast<double>(static_cast<float>(u))));
  }
  EXPECT_NEAR(static_cast<double>(equal) / static_cast<double>(total), 0.7960, 5e-5);
}

TEST(ExpCastPaper, FlushesToZero) {
  double const flush = (0.5 - 119.65) / kCodesPerNat;
  EXPECT_NEAR(flush, -10.3236, 5e-5);
  EXPECT_EQ(paper_decoded(flush - 1e-5), 0.0);
  EXPECT_GT(paper_decoded(flush + 1e-5), 0.0);
}

}  // namespace
}  // namespace vcattn
