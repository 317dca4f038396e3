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

TEST_P(OnlineSoftmax, FirstRowConstantBringsTheMaximumToItsTarget) {
  auto const [prob, form, top_code] = GetParam();
  double const target = reference::row_maximum_target(options_of(GetParam()));
  for (float const row_max : {-700.5f, -1.0f, 0.0f, 0.25f, 63.9f, 4000.0f}) {
    double const maximum = core::has_integer_constant(form) ? std::ceil(static_cast<double>(row_max)) : static_cast<double>(row_max);
    float const constant = core::next_row_constant(prob, form, top_code, row_max, 0.0f, true);
    EXPECT_NEAR(static_cast<double>(constant), target - maximum, 5e-4) << row_max;
    EXPECT_NEAR(core::next_row_constant(prob, form, top_code, static_cast<double>(row_max), 0.0, true), target - maximum, 1e-5) << row_max;
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

TEST(OnlineSoftmaxHeadRoom, IntegerConstantsMoveOnlyWhenACodeWouldPass126) {
  auto const next = [](float row_max, float old_constant) {
    return core::next_row_constant(ProbFormat::e4m3, ExpForm::two_line, 112, row_max, old_constant, false);
  };
  float const constant = core::next_row_constant(ProbFormat::e4m3, ExpForm::two_line, 112, 10.2f, 0.0f, true);
  EXPECT_EQ(constant, 112.0f - 11.0f);
  EXPECT_EQ(next(24.9f, constant), constant) << "ceil(24.9) + 101 = 126 still fits";
  EXPECT_EQ(next(25.1f, constant), 112.0f - 26.0f);
}

TEST(OnlineSoftmaxRescale, IsEighthsOfAnOctave) {
  EXPECT_EQ(core::rescale_factor(-8.0f), 0.5f);
  EXPECT_EQ(core::rescale_factor(-24.0), 0.125);
  EXPECT_NEAR(core::rescale_factor(-1.0), std::exp(-std::numbers::ln2 / 8), 1e-15);
  EXPECT_NEAR(static_cast<double>(core::kCodesPerNat) * static_cast<double>(core::kNatsPerCode), 1.0, 1e-7);
}

}  // namespace
}  // namespace vcattn
