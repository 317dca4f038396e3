// core's codecs against lists of representable values: every code, every midpoint and its float neighbours, saturation, and random bit
// patterns.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "core/e2m1.hpp"
#include "core/e4m3.hpp"
#include "core/half.hpp"
#include "reference/codecs.hpp"

namespace vcattn {
namespace {

using reference::FloatFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Codecs are constexpr.
static_assert(core::e4m3_encode(448.0f) == 0x7E && core::e4m3_encode(kInfinity) == 0x7E && core::e4m3_decode(0x08) == 0x1p-6f);
static_assert(core::ue4m3_encode(-1.0f) == 0 && core::ue4m3_decode(0x38) == 1.0f);
static_assert(core::e2m1_encode(-5.0f) == 0xE && core::e2m1_decode(0x7) == 6.0f);
static_assert(core::bf16_encode(1.0f) == 0x3F80 && core::bf16_decode(0xC000) == -2.0f && core::bf16_round(1.0f) == 1.0f);
static_assert(core::fp16_encode(65520.0f) == 0x7C00 && core::fp16_decode(0x0001) == 0x1p-24f && core::fp16_round(0.5f) == 0.5f);

/// Uniform 32-bit patterns.
class RandomBits {
 public:
  explicit RandomBits(unsigned seed) : engine_(seed) {}
  std::uint32_t operator()() { return static_cast<std::uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

struct E4m3 {
  static constexpr int kBits = 8;
  static FloatFormat const& definition() { return reference::e4m3(); }
  static float decode(std::uint32_t code) { return core::e4m3_decode(static_cast<std::uint8_t>(code)); }
  static std::uint32_t encode(float x) { return core::e4m3_encode(x); }
};
struct E2m1 {
  static constexpr int kBits = 4;
  static FloatFormat const& definition() { return reference::e2m1(); }
  static float decode(std::uint32_t code) { return core::e2m1_decode(static_cast<std::uint8_t>(code)); }
  static std::uint32_t encode(float x) { return core::e2m1_encode(x); }
};
/// The arithmetic that stands in for a conversion instruction.
struct E2m1Magnitude : E2m1 {
  static std::uint32_t encode(float x) { return (core::e2m1_magnitude(x).code & 0xFu) | (std::signbit(x) ? 0x8u : 0u); }
};
struct Bf16 {
  static constexpr int kBits = 16;
  static FloatFormat const& definition() { return reference::bf16(); }
  static float decode(std::uint32_t code) { return core::bf16_decode(static_cast<std::uint16_t>(code)); }
  static std::uint32_t encode(float x) { return core::bf16_encode(x); }
};
struct Fp16 {
  static constexpr int kBits = 16;
  static FloatFormat const& definition() { return reference::fp16(); }
  static float decode(std::uint32_t code) { return core::fp16_decode(static_cast<std::uint16_t>(code)); }
  static std::uint32_t encode(float x) { return core::fp16_encode(x); }
};

template <typename Format>
class CodecTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kSign = 1u << (Format::kBits - 1);

  /// Both signs of x encode to the nearest code.
  static void expect_nearest(float x) {
    ASSERT_EQ(Format::encode(x), Format::definition().encode(static_cast<double>(x))) << x;
    ASSERT_EQ(Format::encode(-x), Format::definition().encode(static_cast<double>(-x))) << -x;
  }
};
using Formats = testing::Types<E4m3, E2m1, E2m1Magnitude, Bf16, Fp16>;
TYPED_TEST_SUITE(CodecTest, Formats);

TYPED_TEST(CodecTest, EveryCodeDecodes) {
  for (std::uint32_t code = 0; code < 1u << TypeParam::kBits; ++code) {
    auto const value = static_cast<double>(TypeParam::decode(code));
    double const expected = TypeParam::definition().decode(code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else {
      ASSERT_EQ(value, expected) << code;
    }
    ASSERT_EQ(std::signbit(value), std::signbit(expected)) << code;
  }
}

TYPED_TEST(CodecTest, EveryCodeSurvivesARoundTrip) {
  for (std::uint32_t code = 0; code < 1u << TypeParam::kBits; ++code) {
    float const value = TypeParam::decode(code);
    if (!std::isnan(value)) {
      ASSERT_EQ(TypeParam::encode(value), code);
    }
  }
}

TYPED_TEST(CodecTest, EveryMidpointAndItsNeighbours) {
  FloatFormat const& format = TypeParam::definition();
  for (std::uint32_t code = 0; code + 1 < format.finite_codes(); ++code) {
    auto const midpoint = static_cast<float>((format.decode(code) + format.decode(code + 1)) / 2);
    ASSERT_EQ(static_cast<double>(midpoint) * 2, format.decode(code) + format.decode(code + 1)) << "midpoints are FP32 numbers";
    ASSERT_EQ(TypeParam::encode(midpoint), code + code % 2) << "ties go to the even code";
    ASSERT_EQ(TypeParam::encode(std::nextafter(midpoint, 0.0f)), code);
    ASSERT_EQ(TypeParam::encode(std::nextafter(midpoint, kInfinity)), code + 1);
    for (float const x : {std::nextafter(midpoint, 0.0f), midpoint, std::nextafter(midpoint, kInfinity)}) this->expect_nearest(x);
  }
}

TYPED_TEST(CodecTest, RandomBitPatterns) {
  RandomBits bits(1);
  for (int i = 0; i < 3'000'000; ++i) {
    auto const x = std::bit_cast<float>(bits());
    if (!std::isnan(x)) this->expect_nearest(x);
  }
}

/// Random bits rarely land inside the range of the narrow formats: numbers with exponents around it.
TYPED_TEST(CodecTest, RandomValuesInRange) {
  RandomBits bits(2);
  for (int i = 0; i < 1'000'000; ++i) {
    std::uint32_t const mantissa = bits() & 0x7FFFFFu;
    std::uint32_t const exponent = 127 - 28 + bits() % 45;
    this->expect_nearest(std::bit_cast<float>((exponent << 23) | mantissa));
  }
}

TYPED_TEST(CodecTest, ZeroKeepsItsSign) {
  EXPECT_EQ(TypeParam::encode(0.0f), 0u);
  EXPECT_EQ(TypeParam::encode(-0.0f), this->kSign);
  EXPECT_EQ(TypeParam::encode(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(TypeParam::encode(-std::numeric_limits<float>::denorm_min()), this->kSign);
}

template <typename Format>
void expect_saturation() {
  std::uint32_t const top = Format::definition().finite_codes() - 1;
  std::uint32_t const sign = 1u << (Format::kBits - 1);
  auto const largest = static_cast<float>(Format::definition().largest());
  for (float const x : {largest, std::nextafter(largest, kInfinity), 1.5f * largest, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(Format::encode(x), top) << x;
    EXPECT_EQ(Format::encode(-x), sign | top) << -x;
  }
}

TEST(CodecEdges, NarrowFormatsSaturate) {
  expect_saturation<E4m3>();
  expect_saturation<E2m1>();
  expect_saturation<E2m1Magnitude>();
}

template <typename Format>
void expect_overflow_to_infinity(float last_finite_midpoint) {
  std::uint32_t const infinity = Format::definition().finite_codes();
  EXPECT_EQ(Format::encode(std::nextafter(last_finite_midpoint, 0.0f)), infinity - 1);
  for (float const x :
       {last_finite_midpoint, std::nextafter(last_finite_midpoint, kInfinity), std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(Format::encode(x), infinity) << x;
    EXPECT_EQ(Format::encode(-x), infinity | 0x8000u) << -x;
  }
}

TEST(CodecEdges, HalvesOverflowToInfinity) {
  expect_overflow_to_infinity<Fp16>(65520.0f);
  expect_overflow_to_infinity<Bf16>(std::bit_cast<float>(0x7F7F8000u));
}

TEST(CodecEdges, NanStaysNanWithItsSign) {
  RandomBits bits(3);
  for (int i = 0; i < 100'000; ++i) {
    std::uint32_t const sign = bits() & 0x80000000u;
    float const nan = std::bit_cast<float>(sign | 0x7F800000u | (1u + bits() % 0x7FFFFFu));
    ASSERT_EQ(core::e4m3_encode(nan), sign != 0 ? 0xFF : 0x7F);
    ASSERT_TRUE(std::isnan(core::bf16_round(nan)));
    ASSERT_TRUE(std::isnan(core::fp16_round(nan)));
    ASSERT_EQ(std::signbit(core::bf16_round(nan)), sign != 0);
    ASSERT_EQ(std::signbit(core::fp16_round(nan)), sign != 0);
    ASSERT_EQ(core::e2m1_encode(nan), 0x7) << "E2M1 has no NaN: +6";
    ASSERT_EQ(core::e2m1_magnitude(nan).code & 0xFu, 0x7u);
  }
}

TEST(CodecEdges, E2m1MagnitudeHasTheValueOfItsCode) {
  RandomBits bits(4);
  for (int i = 0; i < 1'000'000; ++i) {
    float const x = std::bit_cast<float>((127 - 4 + bits() % 8) << 23 | (bits() & 0x7FFFFFu));
    auto const magnitude = core::e2m1_magnitude(x);
    ASSERT_EQ(magnitude.value, core::e2m1_decode(static_cast<std::uint8_t>(magnitude.code & 0xFu))) << x;
  }
}

TEST(CodecEdges, UnsignedE4m3) {
  for (std::uint32_t code = 0; code < 0x7F; ++code) {
    float const value = core::ue4m3_decode(static_cast<std::uint8_t>(code));
    EXPECT_EQ(core::ue4m3_encode(value), code);
    EXPECT_EQ(core::ue4m3_encode(-value), 0);
  }
  EXPECT_EQ(core::ue4m3_encode(-kInfinity), 0);
  EXPECT_EQ(core::ue4m3_encode(kInfinity), 0x7E);
  EXPECT_EQ(core::ue4m3_encode(kNan), 0x7F);
  EXPECT_EQ(core::ue4m3_encode(-kNan), 0x7F);
  EXPECT_EQ(core::ue4m3_decode(0xB8), 1.0f) << "the sign bit is not looked at";
}

}  // namespace
}  // namespace vcattn
