#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "values.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::test {
namespace {

/// [EQ-ENERGY] as it is written: residuals about block means over residuals about the mean.
double brute_force(Values& values, std::int64_t b, std::int64_t h, std::vector<std::int32_t> const& rows, std::size_t block) {
  double left = 0.0;
  double total = 0.0;
  auto const residual = [&](std::size_t begin, std::size_t end, std::int64_t d) {
    double mean = 0.0;
    for (std::size_t i = begin; i < end; ++i) mean += static_cast<double>(values.at(b, rows[i], h, d)) / static_cast<double>(end - begin);
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) sum += std::pow(static_cast<double>(values.at(b, rows[i], h, d)) - mean, 2);
    return sum;
  };
  for (std::int64_t d = 0; d < values.shape.head_dim; ++d) {
    total += residual(0, rows.size(), d);
    for (std::size_t begin = 0; begin < rows.size(); begin += block) left += residual(begin, std::min(begin + block, rows.size()), d);
  }
  return 1.0 - left / total;
}

TEST(Energy, AgreesWithBruteForce) {
  Values values = normal_values({2, 301, 3, 40}, 11);
  for (float& x : values.data) x += 3.0f;
  std::vector<std::int32_t> const seqused{301, 190};
  for (std::int32_t const block : {32, 64, 128}) {
    std::vector<std::int32_t> permutation;
    std::mt19937 generator(5);
    for (std::int64_t head = 0; head < 6; ++head) {
      std::vector<std::int32_t> rows(301);
      std::iota(rows.begin(), rows.end(), 0);
      std::shuffle(rows.begin(), rows.begin() + seqused[static_cast<std::size_t>(head / 3)], generator);
      permutation.insert(permutation.end(), rows.begin(), rows.end());
    }
    std::vector<double> const removed = value_energy_removed(values.view(), permutation, block, seqused);
    ASSERT_EQ(removed.size(), 6u);
    for (std::int64_t head = 0; head < 6; ++head) {
      auto const begin = permutation.begin() + head * 301;
      std::vector<std::int32_t> const rows(begin, begin + seqused[static_cast<std::size_t>(head / 3)]);
      double const expected = brute_force(values, head / 3, head % 3, rows, static_cast<std::size_t>(block));
      EXPECT_NEAR(removed[static_cast<std::size_t>(head)], expected, 1e-9) << "head " << head << " block " << block;
    }
  }
}

TEST(Energy, EmptyPermutationIsSequenceOrder) {
  Values const values = video_values(2, 2, 1);
  std::vector<std::int32_t> identity(2 * 512);
  for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<std::int32_t>(i % 512);
  EXPECT_EQ(value_energy_removed(values.view(), {}, 128), value_energy_removed(values.view(), identity, 128));
}

TEST(Energy, LimitsZeroAndOne) {
  Values constant{{1, 200, 1, 32}, std::vector<float>(200 * 32, 7.3f)};
  EXPECT_EQ(value_energy_removed(constant.view(), {}, 128)[0], 0.0);
  Values const values = normal_values({1, 200, 1, 32}, 2);
  EXPECT_NEAR(value_energy_removed(values.view(), {}, 1)[0], 1.0, 1e-12);
  EXPECT_NEAR(value_energy_removed(values.view(), {}, 256)[0], 0.0, 1e-12);
  EXPECT_EQ(value_energy_removed(values.view(), {}, 128, std::vector<std::int32_t>{0})[0], 0.0);
}

TEST(Energy, PaddingIsNotRead) {
  Values values = normal_values({1, 300, 1, 32}, 2);
  std::vector<std::int32_t> const seqused{211};
  double const expected = value_energy_removed(values.view(), {}, 64, seqused)[0];
  for (std::int64_t s = 211; s < 300; ++s) {
    for (std::int64_t d = 0; d < 32; ++d) values.at(0, s, 0, d) = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_EQ(value_energy_removed(values.view(), {}, 64, seqused)[0], expected);
}

TEST(Energy, RefusesWhatDoesNotFit) {
  Values const values = normal_values({1, 10, 1, 32}, 2);
  TensorView const v = values.view();
  std::vector<std::int32_t> permutation(10);
  std::iota(permutation.begin(), permutation.end(), 0);
  expect_invalid_argument([&] { value_energy_removed(v, std::vector<std::int32_t>(9), 128); });
  expect_invalid_argument([&] { value_energy_removed(v, permutation, 0); });
  expect_invalid_argument([&] { value_energy_removed(v, {}, 128, std::vector<std::int32_t>{11}); });
  std::swap(permutation[0], permutation[9]);
  expect_invalid_argument([&] { value_energy_removed(v, permutation, 128, std::vector<std::int32_t>{9}); });
}

}  // namespace
}  // namespace vcattn::test
