#include "prepare/shaping.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/e4m3.hpp"

namespace vcattn::preparation {
namespace {

constexpr int kWidth = 32;

/// Rows with most of their energy in a few directions.
std::vector<std::vector<float>> low_rank_rows(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> basis(3, std::vector<float>(kWidth));
  std::mt19937 basis_random(99);
  for (auto& direction : basis) {
    for (float& x : direction) x = normal(basis_random);
  }
  std::vector<std::vector<float>> rows(static_cast<std::size_t>(count), std::vector<float>(kWidth));
  for (auto& row : rows) {
    for (auto const& direction : basis) {
      float const weight = 3 * normal(random);
      for (std::size_t d = 0; d < row.size(); ++d) row[d] += weight * direction[d];
    }
    for (float& x : row) x += 0.3f * normal(random);
  }
  return rows;
}

Moment moment_of(std::vector<std::vector<float>> const& rows) {
  Moment moment(kWidth);
  for (auto const& row : rows) {
    for (int i = 0; i < kWidth; ++i) {
      for (int j = 0; j < kWidth; ++j)
        moment.at(i, j) += static_cast<double>(row[static_cast<std::size_t>(i)]) * static_cast<double>(row[static_cast<std::size_t>(j)]);
    }
  }
  return moment;
}

double score_error(std::vector<std::vector<float>> const& queries, std::vector<float> const& delta) {
  double sum = 0;
  for (auto const& q : queries) {
    double score = 0;
    for (std::size_t d = 0; d < delta.size(); ++d) score += static_cast<double>(q[d]) * static_cast<double>(delta[d]);
    sum += score * score;
  }
  return sum;
}

TEST(Shaping, HalvesTheScoreErrorWhereQueriesHaveFewDirections) {
  auto const queries = low_rank_rows(400, 1);
  auto const keys = low_rank_rows(100, 2);
  Feedback const feedback = feedback_of(moment_of(queries));
  RowShaper const shaper{formats::CodeFormat::e4m3, kWidth, 448.0f, &feedback};
  double nearest_error = 0;
  double shaped_error = 0;
  for (auto const& key : keys) {
    auto nearest = key;
    for (std::size_t d = 0; d < key.size(); ++d) nearest[d] = core::e4m3_decode(core::e4m3_encode(key[d])) - key[d];
    nearest_error += score_error(queries, nearest);
    auto shaped = key;
    shape_row_kernel(device::cpu::best_isa())(shaper, nullptr, shaped.data());
    for (std::size_t d = 0; d < key.size(); ++d) {
      EXPECT_EQ(core::e4m3_decode(core::e4m3_encode(shaped[d])), shaped[d]);
      shaped[d] -= key[d];
    }
    shaped_error += score_error(queries, shaped);
  }
  EXPECT_LT(std::sqrt(shaped_error), 0.5 * std::sqrt(nearest_error));
}

TEST(Shaping, WithoutFeedbackIsRoundingToNearest) {
  Feedback const feedback = feedback_of(Moment(kWidth));  // no energy: identity
  RowShaper const shaper{formats::CodeFormat::int8, kWidth, 127.0f, &feedback};
  for (auto row : low_rank_rows(20, 3)) {
    auto const original = row;
    shape_row_kernel(device::cpu::best_isa())(shaper, nullptr, row.data());
    for (std::size_t d = 0; d < row.size(); ++d) EXPECT_EQ(row[d], std::nearbyint(original[d]));
  }
}

TEST(Shaping, EveryInstructionSetGivesTheSameBits) {
  Feedback const feedback = feedback_of(moment_of(low_rank_rows(50, 4)));
  for (auto const format : {formats::CodeFormat::e4m3, formats::CodeFormat::int8}) {
    RowShaper const shaper{format, kWidth, format == formats::CodeFormat::int8 ? 127.0f : 448.0f, &feedback};
    for (auto const& row : low_rank_rows(50, 5)) {
      auto expected = row;
      shape_row_kernel(device::cpu::Isa::baseline)(shaper, nullptr, expected.data());
      for (auto const isa : device::cpu::available_isas()) {
        auto got = row;
        shape_row_kernel(isa)(shaper, nullptr, got.data());
        EXPECT_EQ(got, expected) << device::cpu::isa_name(isa);
      }
    }
  }
}

TEST(Shaping, CodesStayInsideTheirLimit) {
  Feedback const feedback = feedback_of(moment_of(low_rank_rows(50, 6)));
  RowShaper const shaper{formats::CodeFormat::e4m3, kWidth, 30.0f, &feedback};
  for (auto row : low_rank_rows(50, 7)) {
    for (float& x : row) x *= 3;
    shape_row_kernel(device::cpu::best_isa())(shaper, nullptr, row.data());
    for (float const x : row) EXPECT_LE(std::abs(x), 30.0f);
  }
}

}  // namespace
}  // namespace vcattn::preparation
