#include "formats/codes.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

namespace vcattn::formats {
namespace {

class CodesOfFormat : public testing::TestWithParam<CodeFormat> {};

TEST_P(CodesOfFormat, DecodingRestoresWhatEncodingRounded) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::array<float, 64> values{};
  for (float& v : values) v = normal(random);
  float amax = 0;
  for (float const v : values) amax = std::max(amax, std::abs(v));
  float const descale = descale_of(GetParam(), amax);
  std::array<std::byte, 256> codes{};
  std::array<std::uint8_t, 4> factors{};
  std::array<float, 64> decoded{};
  encode_row(GetParam(), values.data(), 64, 1.0f / descale, codes.data(), factors.data());
  decode_row(GetParam(), codes.data(), factors.data(), 64, decoded.data());
  // Largest relative step between neighbours, or the absolute step of the format at its bottom.
  double const relative = GetParam() == CodeFormat::f32    ? 0.0
                          : GetParam() == CodeFormat::bf16 ? 0x1p-8
                          : GetParam() == CodeFormat::e4m3 ? 0x1p-4
                                                           : 0.0;
  double const absolute = GetParam() == CodeFormat::int8 ? 0.5 * descale : GetParam() == CodeFormat::nvfp4 ? amax / 6.0 * 1.2 : 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_LE(std::abs(decoded[i] * descale - values[i]), relative * std::abs(values[i]) + absolute + 1e-6) << i;
  }
  // What is representable stays.
  std::array<std::byte, 256> again{};
  std::array<std::uint8_t, 4> same_factors = factors;
  encode_codes(GetParam(), decoded.data(), 64, 1.0f, same_factors.data(), again.data());
  EXPECT_EQ(again, codes);
}

INSTANTIATE_TEST_SUITE_P(All, CodesOfFormat,
                         testing::Values(CodeFormat::f32, CodeFormat::bf16, CodeFormat::e4m3, CodeFormat::int8, CodeFormat::nvfp4));

TEST(Codes, ABlockThatCountsAsZeroHasDescaleOne) {
  for (CodeFormat const format : {CodeFormat::e4m3, CodeFormat::int8, CodeFormat::nvfp4}) {
    EXPECT_EQ(descale_of(format, 0.0f), 1.0f);
    EXPECT_EQ(descale_of(format, 0x1p-101f), 1.0f);
    EXPECT_GT(1.0f / descale_of(format, 0x1p-99f), 0.0f);
    EXPECT_TRUE(std::isfinite(1.0f / descale_of(format, 0x1p-99f)));
  }
}

}  // namespace
}  // namespace vcattn::formats
