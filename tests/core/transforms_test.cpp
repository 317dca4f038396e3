// Hadamard, RoPE and the sums whose order is part of the contract.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/fixed_order.hpp"
#include "core/hadamard.hpp"
#include "core/rope.hpp"
#include "reference/stages.hpp"

namespace vcattn {
namespace {

std::vector<float> random_floats(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

reference::Matrix as_row(std::vector<float> const& values) {
  reference::Matrix row(1, static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), row.data.begin());
  return row;
}

class Hadamard : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Hadamard, testing::Values(1, 2, 8, 32, 64, 128, 256));

TEST_P(Hadamard, EqualsTheExplicitMatrix) {
  int const n = GetParam();
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::vector<float> row = random_floats(n, seed);
    reference::Matrix const expected = reference::hadamard(as_row(row));
    core::hadamard_row(row.data(), n);
    for (std::size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(static_cast<double>(row[i]), expected.data[i], 2e-6) << "n=" << n;
  }
}

TEST_P(Hadamard, IsItsOwnInverse) {
  int const n = GetParam();
  std::vector<float> const original = random_floats(n, 7);
  std::vector<float> row = original;
  core::hadamard_row(row.data(), n);
  core::hadamard_row(row.data(), n);
  for (std::size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], original[i], 2e-6f);
}

TEST_P(Hadamard, NormIsTheRoundedInverseRoot) {
  EXPECT_EQ(core::hadamard_norm(GetParam()), static_cast<float>(1.0 / std::sqrt(static_cast<double>(GetParam()))));
}

/// Integers stay exact: rows of the matrix are orthogonal and have entries +-1/sqrt(n).
TEST_P(Hadamard, RowsAreOrthonormal) {
  int const n = GetParam();
  auto const unit_row = [&](int i) {
    std::vector<float> row(static_cast<std::size_t>(n), 0.0f);
    row[static_cast<std::size_t>(i)] = 1.0f;
    core::hadamard_row(row.data(), n);
    return row;
  };
  for (int i = 0; i < n; i += std::max(1, n / 8)) {
    std::vector<float> const a = unit_row(i);
    for (float const x : a) ASSERT_EQ(std::abs(x), core::hadamard_norm(n));
    for (int j = 0; j < n; ++j) {
      std::vector<float> const b = unit_row(j);
      double product = 0;
      for (std::size_t c = 0; c < a.size(); ++c) product += static_cast<double>(a[c]) * static_cast<double>(b[c]);
      ASSERT_NEAR(product, i == j ? 1.0 : 0.0, 1e-6);
    }
  }
}

struct RopeCase {
  int head_dim, rotary_dim, first_channel;
  RopeStyle style;
};
class RotaryEmbedding : public testing::TestWithParam<RopeCase> {};
INSTANTIATE_TEST_SUITE_P(Ranges, RotaryEmbedding,
                         testing::Values(RopeCase{128, 128, 0, RopeStyle::interleaved}, RopeCase{128, 128, 0, RopeStyle::rotate_half},
                                         RopeCase{128, 96, 0, RopeStyle::rotate_half}, RopeCase{64, 32, 32, RopeStyle::interleaved},
                                         RopeCase{40, 2, 38, RopeStyle::rotate_half}));

TEST_P(RotaryEmbedding, RotatesPairsByTheirAngle) {
  auto const [head_dim, rotary_dim, first_channel, style] = GetParam();
  int const half = rotary_dim / 2;
  std::vector<float> const angles = random_floats(half, 5);
  std::vector<float> cosines, sines;
  for (float const angle : angles) {
    cosines.push_back(std::cos(angle));
    sines.push_back(std::sin(angle));
  }
  std::vector<float> const original = random_floats(head_dim, 6);
  std::vector<float> row = original;
  core::rope_row(row.data() + first_channel, cosines.data(), sines.data(), rotary_dim, style == RopeStyle::interleaved);

  std::vector<double> expected(original.begin(), original.end());
  for (int i = 0; i < half; ++i) {
    auto const x = static_cast<std::size_t>(first_channel + (style == RopeStyle::interleaved ? 2 * i : i));
    std::size_t const y = x + static_cast<std::size_t>(style == RopeStyle::interleaved ? 1 : half);
    auto const angle = static_cast<double>(angles[static_cast<std::size_t>(i)]);
    auto const radius = std::hypot(expected[x], expected[y]);
    double const turned = std::atan2(expected[y], expected[x]) + angle;
    expected[x] = radius * std::cos(turned);
    expected[y] = radius * std::sin(turned);
  }
  for (std::size_t c = 0; c < row.size(); ++c) ASSERT_NEAR(static_cast<double>(row[c]), expected[c], 1e-6) << "channel " << c;
  for (int c = 0; c < head_dim; ++c) {
    if (c >= first_channel && c < first_channel + rotary_dim) continue;
    ASSERT_EQ(row[static_cast<std::size_t>(c)], original[static_cast<std::size_t>(c)]) << "channels outside the range are untouched";
  }
}

TEST_P(RotaryEmbedding, RoundsAsTheContractSays) {
  auto const [head_dim, rotary_dim, first_channel, style] = GetParam();
  bool const interleaved = style == RopeStyle::interleaved;
  int const half = rotary_dim / 2;
  std::vector<float> const cosines = random_floats(half, 8);
  std::vector<float> const sines = random_floats(half, 9);
  std::vector<float> const original = random_floats(rotary_dim, 10);
  std::vector<float> row = original;
  core::rope_row(row.data(), cosines.data(), sines.data(), rotary_dim, interleaved);
  for (int i = 0; i < half; ++i) {
    auto const pair = static_cast<std::size_t>(i);
    auto const x = static_cast<std::size_t>(interleaved ? 2 * i : i);
    auto const y = static_cast<std::size_t>(interleaved ? 2 * i + 1 : i + half);
    float const ys = original[y] * sines[pair];
    float const xs = original[x] * sines[pair];
    ASSERT_EQ(row[x], std::fma(original[x], cosines[pair], -ys));
    ASSERT_EQ(row[y], std::fma(original[y], cosines[pair], xs));
  }
}

/// Pairwise definition of the tree: node = left half + right half, element by element from the outside in.
float pairwise(std::vector<float> const& values) {
  std::vector<float> level = values;
  while (level.size() > 1) {
    std::size_t const half = level.size() / 2;
    std::vector<float> next(half);
    for (std::size_t i = 0; i < half; ++i) next[i] = level[i] + level[i + half];
    level = next;
  }
  return level[0];
}

TEST(FixedOrder, TreeSumAddsHalvesOntoEachOther) {
  for (int const count : {1, 2, 8, 16, 32, 64}) {
    std::vector<float> const values = random_floats(count, 11);
    std::vector<float> scratch = values;
    EXPECT_EQ(core::tree_sum(scratch.data(), count), pairwise(values)) << count;
  }
}

/// 2^24 + 1 - 2^24: which partner meets which decides whether the 1 survives.
TEST(FixedOrder, TreeSumOrderIsObservable) {
  float survives[] = {0x1p24f, 1.0f, -0x1p24f, 0.0f};  // strides 2, 1: (a + c) + (b + d)
  EXPECT_EQ(core::tree_sum(survives, 4), 1.0f);
  float is_lost[] = {0x1p24f, -0x1p24f, 1.0f, 0.0f};  // (2^24 + 1) + (-2^24 + 0)
  EXPECT_EQ(core::tree_sum(is_lost, 4), 0.0f);
}

TEST(FixedOrder, LaneDotIsFourChannelsPerLaneThenATree) {
  for (int const n : {32, 64, 128, 256}) {
    std::vector<float> const a = random_floats(n, 12);
    std::vector<float> const b = random_floats(n, 13);
    std::vector<float> lanes;
    for (std::size_t c = 0; c < a.size(); c += 4) {
      float const sum = std::fma(a[c + 2], b[c + 2], std::fma(a[c + 1], b[c + 1], a[c] * b[c]));
      lanes.push_back(std::fma(a[c + 3], b[c + 3], sum));
    }
    EXPECT_EQ(core::lane_dot(a.data(), b.data(), n), pairwise(lanes)) << n;
    EXPECT_NEAR(static_cast<double>(core::lane_dot(a.data(), b.data(), n)), reference::dot(as_row(a), 0, as_row(b), 0), 1e-4);
  }
}

}  // namespace
}  // namespace vcattn
