// Row constants, rescaling and log-sum-exp against the definitions of the reference.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "core/online_softmax.hpp"
#include "reference/probabilities.hpp"

namespace vcattn {
namespace {

struct Case {
  ProbFormat prob;
  ExpForm form;
  std::int32_t top_code;
};
Case const kCases[] = {
    {ProbFormat::f32, ExpForm::exp, 126},       {ProbFormat::bf16, ExpForm::exp, 126},
    {ProbFormat::nvfp4, ExpForm::exp, 126},     {ProbFormat::nvfp4_two_level, ExpForm::exp, 126},
    {ProbFormat::e4m3, ExpForm::exp, 126},      {ProbFormat::e4m3, ExpForm::exp, 120},
    {ProbFormat::e4m3, ExpForm::paper, 120},    {ProbFormat::e4m3, ExpForm::offset126, 126},
    {ProbFormat::e4m3, ExpForm::two_line, 126}, {ProbFormat::e4m3, ExpForm::two_line, 112},
    {ProbFormat::e4m3, ExpForm::affine, 126},
};

Options options_of(Case const& c) {
  Options options;
  options.prob = c.prob;
  options.exp_form = c.form;
  options.top_code = c.top_code;
  return options;
}

class OnlineSoftmax : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Forms, OnlineSoftmax, testing::ValuesIn(kCases));

/// The forms that packed-half kernels have: FP16 scores, integer row constants.
class HeadRoomForm : public OnlineSoftmax {};
INSTANTIATE_TEST_SUITE_P(Forms, HeadRoomForm,
                         testing::Values(Case{ProbFormat::e4m3, ExpForm::offset126, 126}, Case{ProbFormat::e4m3, ExpForm::two_line, 126},
                                         Case{ProbFormat::e4m3, ExpForm::two_line, 112}, Case{ProbFormat::e4m3, ExpForm::two_line, 8}));

TEST_P(OnlineSoftmax, FirstRowConstantBringsTheMaximumToItsTarget) {
  auto const [prob, form, top_code] = GetParam();
  for (float const row_max : {-700.5f, -1.0f, 0.0f, 0.25f, 63.9f, 4000.0f}) {
    double const expected = reference::row_constant(options_of(GetParam()), false, static_cast<double>(row_max));
    float const constant = core::next_row_constant(prob, form, top_code, false, row_max, 0.0f, true);
    EXPECT_NEAR(static_cast<double>(constant), expected, 5e-4) << row_max;
    EXPECT_NEAR(core::next_row_constant(prob, form, top_code, false, static_cast<double>(row_max), 0.0, true), expected, 1e-5) << row_max;
  }
}

/// [EQ-TOP-ALIGN] Every row maximum that FP16 scores can have near 0, and coarser ones up to the score bound.
TEST_P(HeadRoomForm, Fp16ScoresGetAnAlignedInteger) {
  auto const [prob, form, top_code] = GetParam();
  for (float row_max = -1024.0f; row_max <= 1024.0f; row_max += std::abs(row_max) < 4 ? 1.0f / 256 : 0.5f) {
    float const constant = core::next_row_constant(prob, form, top_code, true, row_max, 0.0f, true);
    ASSERT_EQ(constant, std::round(constant));
    ASSERT_EQ(static_cast<double>(constant), reference::row_constant(options_of(GetParam()), true, static_cast<double>(row_max)))
        << row_max;
    ASSERT_LE(row_max + constant, static_cast<float>(top_code));
    ASSERT_GT(row_max + constant, static_cast<float>(top_code - 8));
  }
}

TEST_P(OnlineSoftmax, LogSumExpOfAKnownRow) {
  auto const [prob, form, top_code] = GetParam();
  for (double const row_constant : {126.0, -300.25, 55.5}) {
    for (double const row_sum : {1.0, 448.0, 1e5}) {
      double const expected = reference::log_sum_exp(options_of(GetParam()), row_sum, row_constant, 0.0);
      EXPECT_NEAR(core::log_sum_exp(prob, form, row_sum, row_constant), expected, 1e-6);
      float const single = core::log_sum_exp(prob, form, static_cast<float>(row_sum), static_cast<float>(row_constant));
      EXPECT_NEAR(static_cast<double>(single), expected, 2e-5);
    }
  }
}

TEST(OnlineSoftmaxHeadRoom, RowConstantsMoveOnlyWhenACodeWouldPass126) {
  for (bool const f16_scores : {false, true}) {
    auto const next = [&](float row_max, float old_constant) {
      return core::next_row_constant(ProbFormat::e4m3, ExpForm::two_line, 112, f16_scores, row_max, old_constant, false);
    };
    float const constant = 101.0f;
    EXPECT_EQ(next(24.9f, constant), constant) << "24.9 + 101 rounds to 126 at most";
    EXPECT_EQ(next(-500.0f, constant), constant) << "a lower maximum never moves it";
    EXPECT_LE(next(25.1f, constant) + 25.1f, 112.0f) << "back to the top code";
  }
}

TEST(OnlineSoftmaxRescale, IsEighthsOfAnOctave) {
  EXPECT_EQ(core::rescale_factor(-8.0f), 0.5f);
  EXPECT_EQ(core::rescale_factor(-24.0), 0.125);
  EXPECT_NEAR(core::rescale_factor(-1.0), std::exp(-std::numbers::ln2 / 8), 1e-15);
  EXPECT_NEAR(static_cast<double>(core::kCodesPerNat) * static_cast<double>(core::kNatsPerCode), 1.0, 1e-7);
}

}  // namespace
}  // namespace vcattn
