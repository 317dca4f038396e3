// NVFP4 helpers against the reference encoder, and what two-level scaling promises.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "core/nvfp4.hpp"
#include "reference/codecs.hpp"
#include "reference/stages.hpp"

namespace vcattn {
namespace {

static_assert(core::nvfp4_descale(2688.0f) == 1.0f && core::nvfp4_descale(0.0f) == 1.0f);
static_assert(core::nvfp4_block_scale(2688.0f) == core::kE4m3TopCode && core::nvfp4_block_inverse(0) == 0.0f);

using Group = std::array<float, core::kNvfp4Group>;

struct CodedGroup {
  std::uint8_t scale_factor;
  std::array<std::uint8_t, core::kNvfp4Group> codes;
  Group decoded;  // real values
};

CodedGroup encode(Group const& x, float descale) {
  Group scaled{};
  float amax16 = 0.0f;
  for (std::size_t i = 0; i < x.size(); ++i) {
    scaled[i] = x[i] * (1.0f / descale);
    amax16 = std::max(amax16, std::abs(scaled[i]));
  }
  CodedGroup group{core::nvfp4_block_scale(amax16), {}, {}};
  for (std::size_t i = 0; i < x.size(); ++i) {
    group.codes[i] = core::e2m1_encode(scaled[i] * core::nvfp4_block_inverse(group.scale_factor));
    group.decoded[i] = core::e2m1_decode(group.codes[i]) * core::ue4m3_decode(group.scale_factor) * descale;
  }
  return group;
}

Group random_group(std::mt19937& random, float magnitude) {
  std::normal_distribution<float> normal(0.0f, magnitude);
  Group x{};
  for (float& value : x) value = normal(random);
  return x;
}

TEST(Nvfp4, AgreesWithTheReferenceEncoder) {
  std::mt19937 random(1);
  long equal = 0;
  long total = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    Group const x = random_group(random, std::exp2(static_cast<float>(trial % 20) - 10.0f));
    float const descale = core::nvfp4_descale(1024.0f);
    reference::Matrix row(1, core::kNvfp4Group);
    std::copy(x.begin(), x.end(), row.data.begin());
    reference::Coded const expected = reference::encode_rows(row, reference::CodeFormat::nvfp4, {{descale}, 1});
    CodedGroup const group = encode(x, descale);
    ASSERT_EQ(group.scale_factor, expected.scale_factors[0]) << "trial " << trial;
    for (std::size_t i = 0; i < x.size(); ++i, ++total) {
      equal += group.codes[i] == expected.codes[i];
      double const value = static_cast<double>(core::e2m1_decode(group.codes[i]));
      double const nearest = reference::e2m1().round(expected.scaled.data[i]);
      // A different code is allowed only where FP32 rounding reaches a midpoint: then both are equally near.
      ASSERT_NEAR(std::abs(value - expected.scaled.data[i]), std::abs(nearest - expected.scaled.data[i]), 1e-5);
    }
  }
  EXPECT_GT(equal, total * 9999 / 10000);
}

/// The worst relative step of E2M1 is 1/5 of the value (between 4 and 6), the block scale may round down by 1/17 of itself or up by as
/// much.
TEST(Nvfp4, ErrorStaysInsideAHalfStepOfTheGroup) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20'000; ++trial) {
    Group const x = random_group(random, 1.0f);
    float amax16 = 0.0f;
    for (float const value : x) amax16 = std::max(amax16, std::abs(value));
    CodedGroup const group = encode(x, core::nvfp4_descale(amax16 * 4.0f));
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(group.decoded[i] - x[i]), amax16 / 6.0f * (17.0f / 16.0f) + 1e-6f);
  }
}

TEST(Nvfp4, InverseOfEveryBlockScale) {
  for (int code = 1; code <= core::kE4m3TopCode; ++code) {
    auto const sf = static_cast<std::uint8_t>(code);
    EXPECT_EQ(core::nvfp4_block_inverse(sf), 1.0f / core::ue4m3_decode(sf)) << code;
  }
}

TEST(Nvfp4, LargestValueOfTheTensorIsExact) {
  for (float const amax : {1.0f, 3.7f, 1e-20f, 1e30f}) {
    Group x{};
    x[5] = -amax;
    EXPECT_NEAR(encode(x, core::nvfp4_descale(amax)).decoded[5] / -amax, 1.0f, 1e-6f);
  }
}

TEST(Nvfp4, GroupsTooSmallForTheirScaleAreZero) {
  Group x{};
  x[0] = 0x1p-11f;  // a sixth of it is below half the smallest UE4M3 value
  CodedGroup const group = encode(x, 1.0f);
  EXPECT_EQ(group.scale_factor, 0);
  EXPECT_EQ(group.codes[0], 0);
  EXPECT_EQ(group.decoded[0], 0.0f);
}

}  // namespace
}  // namespace vcattn
