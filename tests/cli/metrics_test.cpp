#include "metrics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "evaluate.hpp"

namespace vcattn::cli {
namespace {

TEST(Metrics, KnownFigures) {
  std::vector<float> const reference{3, 4}, output{3, 4.5f};
  ErrorSums const sums = pooled(error_per_head(output, reference, 1, 1, 1, 2));
  EXPECT_DOUBLE_EQ(sums.rel_l2(), 0.1);
  EXPECT_NEAR(sums.snr_db(), 20.0, 1e-12);
  EXPECT_DOUBLE_EQ(sums.max_abs(), 0.5);
  EXPECT_NEAR(sums.cosine(), 27.0 / (5.0 * std::sqrt(29.25)), 1e-15);
}

TEST(Metrics, HeadsAreKeptApartAndPoolToTheWhole) {
  // [B = 1, S = 2, H = 2, D = 1]: head 0 has errors 1 and 0, head 1 none.
  std::vector<float> const reference{1, 2, 1, 2}, output{2, 2, 1, 2};
  auto const heads = error_per_head(output, reference, 1, 2, 2, 1);
  ASSERT_EQ(heads.size(), 2u);
  EXPECT_DOUBLE_EQ(heads[0].rel_l2(), std::sqrt(0.5));
  EXPECT_EQ(heads[1].rel_l2(), 0.0);
  EXPECT_DOUBLE_EQ(pooled(heads).rel_l2(), std::sqrt(0.1));
}

TEST(Metrics, ZeroReference) {
  ErrorSums equal, different;
  equal.add(0, 0);
  different.add(2, 0);
  EXPECT_EQ(equal.rel_l2(), 0.0);
  EXPECT_EQ(equal.cosine(), 1.0);
  EXPECT_TRUE(std::isinf(equal.snr_db()));
  EXPECT_EQ(different.rel_l2(), 2.0);
  EXPECT_EQ(different.cosine(), 0.0);
}

TEST(Metrics, NanSticks) {
  ErrorSums sums;
  sums.add(std::numeric_limits<float>::quiet_NaN(), 1);
  sums.add(5, 1);
  EXPECT_TRUE(std::isnan(sums.max_abs()));
  EXPECT_TRUE(std::isnan(sums.rel_l2()));
  ErrorSums total;
  total.add(sums);
  EXPECT_TRUE(std::isnan(total.max_abs()));
}

TEST(QuerySamples, AreEvenlySpacedAndInside) {
  for (std::int64_t const seqlen : {1, 7, 100, 2048}) {
    for (std::int64_t const count : {0, 1, 3, 64, 5000}) {
      QuerySample const sample = evenly_spaced(seqlen, count);
      EXPECT_EQ(sample.count, count == 0 ? seqlen : std::min(seqlen, count));
      EXPECT_GE(sample.first, 0);
      EXPECT_LT(sample.first + (sample.count - 1) * sample.step, seqlen);
    }
  }
}

TEST(Metrics, FixedPercentHasNoNegativeZero) {
  EXPECT_EQ(fixed_percent(-4e-15, 1), "0.0 %");
  EXPECT_EQ(fixed_percent(-4e-15, 3), "0.000 %");
  EXPECT_EQ(fixed_percent(0.12345, 1), "12.3 %");
  EXPECT_EQ(fixed_percent(-0.01, 1), "-1.0 %");
}

}  // namespace
}  // namespace vcattn::cli
