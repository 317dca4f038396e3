// The report computes the ExpCast forms on its own; here they meet the definitions of the library's core.

#include "report/expcast_curves.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/e4m3.hpp"
#include "core/expcast.hpp"

namespace vcattn::cli {
namespace {

TEST(ExpCastCurves, DecodeAsE4m3) {
  for (int code = 0; code <= core::kE4m3TopCode; ++code) {
    auto const byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(decode_probability(byte), core::e4m3_decode(byte));
  }
}

TEST(ExpCastCurves, FollowTheDefinitions) {
  for (int i = 0; i < 20000; ++i) {
    double const nats = -20.0 * (i + 0.37) / 20000;
    auto const score = static_cast<float>(nats);
    EXPECT_NEAR(probability_code(ExpForm::paper, nats), core::expcast_paper(score, core::kCodesPerNat, core::kPaperOffset), 1e-9);
    EXPECT_NEAR(probability_code(ExpForm::offset126, nats), core::expcast_offset(score, core::kCodesPerNat, 126.0f), 1e-9);
    EXPECT_NEAR(probability_code(ExpForm::two_line, nats), core::expcast_two_line(score, core::kCodesPerNat, 126.0f), 1e-9);
    EXPECT_NEAR(probability_code(ExpForm::affine, nats), core::expcast_affine(score, core::kCodesPerNat, 126.0f), 1e-9);
  }
}

TEST(ExpCastCurves, ExponentialRoundsToTheNearestCode) {
  EXPECT_EQ(probability_code(ExpForm::exp, 0.0), core::kE4m3TopCode);
  EXPECT_EQ(probability_code(ExpForm::exp, -30.0), 0);
  for (int i = 0; i < 5000; ++i) {
    double const nats = -14.0 * (i + 0.41) / 5000;
    EXPECT_EQ(probability_code(ExpForm::exp, nats), core::e4m3_encode(static_cast<float>(448.0 * std::exp(nats))));
  }
}

}  // namespace
}  // namespace vcattn::cli
