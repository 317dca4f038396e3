#include "grouping/order.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "grouping/reversals.hpp"
#include "values.hpp"

namespace vcattn::grouping {
namespace {

RowMatrix on_a_line(std::vector<float> const& positions) {
  RowMatrix rows(std::ssize(positions), 1);
  rows.values = positions;
  return rows;
}

double path_length(RowMatrix const& rows, std::vector<std::int32_t> const& path) {
  double length = 0.0;
  for (std::size_t p = 1; p < path.size(); ++p) {
    for (std::int64_t c = 0; c < rows.dim; ++c) {
      double const step = static_cast<double>(rows.row(path[p])[c]) - static_cast<double>(rows.row(path[p - 1])[c]);
      length += step * step;
    }
  }
  return length;
}

/// Energy in the block means about the origin: what an exchange may not lower.
double energy_in_means(RowMatrix const& rows, std::vector<std::int32_t> const& order, std::size_t block) {
  double energy = 0.0;
  for (std::size_t begin = 0; begin < order.size(); begin += block) {
    std::size_t const end = std::min(begin + block, order.size());
    for (std::int64_t c = 0; c < rows.dim; ++c) {
      double sum = 0.0;
      for (std::size_t i = begin; i < end; ++i) sum += static_cast<double>(rows.row(order[i])[c]);
      energy += sum * sum / static_cast<double>(end - begin);
    }
  }
  return energy;
}

std::vector<std::int32_t> identity(std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

constexpr ChainStart kStarts[] = {ChainStart::greedy, ChainStart::stored};

std::vector<std::int32_t> greedy_chain_of(std::vector<float> const& positions) {
  return chain_clusters(on_a_line(positions), ChainStart::greedy);
}

void reverse(std::vector<std::int32_t>& path, PathPart part) { std::reverse(path.begin() + part.first, path.begin() + part.last + 1); }

TEST(Chain, StartsFarthestFromTheOriginAndVisitsNeighbours) {
  EXPECT_EQ(greedy_chain_of({0, -6, 3, -2, 5, 2}), (std::vector<std::int32_t>{1, 3, 0, 5, 2, 4}));
}

TEST(Chain, TheFarthestCentroidDecidesTheDirection) {
  EXPECT_EQ(greedy_chain_of({5, 0, -6}), (std::vector<std::int32_t>{2, 1, 0}));
  EXPECT_EQ(greedy_chain_of({6, 0, -5}), (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(Chain, SizesZeroAndOne) {
  for (ChainStart const start : kStarts) {
    EXPECT_TRUE(chain_clusters(RowMatrix(0, 4), start).empty());
    EXPECT_EQ(chain_clusters(RowMatrix(1, 4), start), (std::vector<std::int32_t>{0}));
  }
}

TEST(Chain, EqualCentroidsComeInIndexOrder) {
  for (ChainStart const start : kStarts) EXPECT_EQ(chain_clusters(on_a_line({1, 1, 1, 1}), start), identity(4));
}

TEST(Chain, AStoredChainStaysAsItIsAndAnotherOrderIsImproved) {
  EXPECT_EQ(chain_clusters(on_a_line({1, 2, 3, 4, 9}), ChainStart::stored), identity(5));
  EXPECT_EQ(chain_clusters(on_a_line({9, 4, 3, 2, 1}), ChainStart::stored), identity(5));
  EXPECT_EQ(chain_clusters(on_a_line({1, 4, 3, 2, 9}), ChainStart::stored), (std::vector<std::int32_t>{0, 3, 2, 1, 4}));
}

TEST(Chain, TurnsPartsApartAndOneInsideAnother) {
  // Two parts to turn, and one inside the first.
  EXPECT_EQ(chain_clusters(on_a_line({0, 10, 8, 9, 7, 6, 5, 20, 40, 60, 50, 70}), ChainStart::stored),
            (std::vector<std::int32_t>{0, 6, 5, 4, 2, 3, 1, 7, 8, 10, 9, 11}));
}

TEST(Chain, NonFiniteCentroidsStillGiveAPermutation) {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  float const infinity = std::numeric_limits<float>::infinity();
  for (ChainStart const start : kStarts) {
    std::vector<std::int32_t> path = chain_clusters(on_a_line({1, nan, 2, infinity, -infinity, nan, 3}), start);
    std::sort(path.begin(), path.end());
    EXPECT_EQ(path, identity(7));
  }
}

TEST(Chain, IsNoLongerThanAnyOfItsReversals) {
  RowMatrix centroids(40, 8);
  centroids.values = test::normal_values({1, 40, 1, 8}, 5).data;
  for (ChainStart const start : kStarts) {
    std::vector<std::int32_t> const path = chain_clusters(centroids, start);
    double const length = path_length(centroids, path);
    for (std::int32_t first = 0; first < std::ssize(path); ++first) {
      for (std::int32_t last = first + 1; last < std::ssize(path); ++last) {
        std::vector<std::int32_t> reversed = path;
        reverse(reversed, {first, last});
        EXPECT_GE(path_length(centroids, reversed), length * (1.0 - 1e-5));
      }
    }
  }
}

TEST(Reversal, OfCrossingOrTouchingPartsDoNotGoTogether) {
  PathPart const done{4, 8};
  for (PathPart const part : {PathPart{2, 3}, PathPart{2, 4}, PathPart{2, 6}, PathPart{2, 8}, PathPart{4, 6}, PathPart{4, 8},
                              PathPart{4, 9}, PathPart{6, 8}, PathPart{6, 9}, PathPart{8, 9}, PathPart{9, 10}}) {
    PathPart other = part;
    EXPECT_FALSE(survives_reversal(other, done)) << part.first << ".." << part.last;
  }
}

RC_GTEST_PROP(Reversal, AddsTheSameAfterOneThatItSurvives, ()) {
  constexpr std::int32_t kClusters = 12;
  RowMatrix centroids(kClusters, 3);
  centroids.values = test::normal_values({1, kClusters, 1, 3}, *rc::gen::arbitrary<unsigned>()).data;
  auto const any_part = [] {
    auto const first = *rc::gen::inRange(0, kClusters - 1);
    return PathPart{first, *rc::gen::inRange(first + 1, kClusters)};
  };
  PathPart const done = any_part();
  PathPart part = any_part();
  std::vector<std::int32_t> path = identity(kClusters);
  double const length = path_length(centroids, path);
  reverse(path, part);
  double const added = path_length(centroids, path) - length;
  if (!survives_reversal(part, done)) return;

  path = identity(kClusters);
  reverse(path, done);
  double const length_done = path_length(centroids, path);
  reverse(path, part);
  RC_ASSERT(std::abs(path_length(centroids, path) - length_done - added) < 1e-9 * length);
}

TEST(RowsAlongPath, ClustersInPathOrderKeysAscendingTiesByRow) {
  Members const members = collect_members(std::vector<std::int32_t>{1, 0, 1, 0, 1}, 2);
  std::vector<std::int32_t> const path{1, 0};
  EXPECT_EQ(rows_along_path(members, path), (std::vector<std::int32_t>{0, 2, 4, 1, 3}));
  EXPECT_EQ(rows_along_path(members, path, std::vector<float>{0.5f, 2, -1, 2, -0.0f}), (std::vector<std::int32_t>{2, 4, 0, 1, 3}));
}

TEST(Exchange, SeparatesTwoInterleavedKinds) {
  std::vector<float> positions;
  for (int i = 0; i < 64; ++i) positions.push_back(i % 3 == 0 ? -1.0f : 1.0f);  // 22 of one kind: blocks of 32 hold 11 and 11
  positions[0] = -1.5f;
  RowMatrix const tokens = on_a_line(positions);
  std::vector<std::int32_t> order = identity(64);
  exchange_between_blocks(tokens, 32, 1, order);
  auto const kind = [&](std::int32_t row) { return positions[static_cast<std::size_t>(row)] > 0; };
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end(), [&](auto a, auto b) { return kind(a) < kind(b); }) ||
              std::is_sorted(order.begin(), order.end(), [&](auto a, auto b) { return kind(a) > kind(b); }));
}

TEST(Exchange, ReachesOddPairsAndAShortLastBlock) {
  RowMatrix const tokens = on_a_line({0, 0, 9, 1, 2});
  std::vector<std::int32_t> order = identity(5);
  exchange_between_blocks(tokens, 2, 1, order);
  EXPECT_EQ(order, (std::vector<std::int32_t>{0, 1, 2, 4, 3}));  // means 5 and 2: the 9 keeps the larger neighbour

  RowMatrix const swapped = on_a_line({0, 0, 9, 1, 2, 9.5f});
  order = identity(6);
  exchange_between_blocks(swapped, 2, 1, order);
  EXPECT_EQ(order, (std::vector<std::int32_t>{0, 1, 3, 4, 2, 5}));
}

TEST(Exchange, ASingleBlockStaysAsItIs) {
  RowMatrix const tokens = on_a_line({3, 1, 2});
  std::vector<std::int32_t> order = identity(3);
  exchange_between_blocks(tokens, 4, 2, order);
  EXPECT_EQ(order, identity(3));
}

RC_GTEST_PROP(Exchange, NeverLowersTheEnergyOfTheMeans, ()) {
  auto const count = *rc::gen::inRange<std::int64_t>(1, 300);
  auto const block = *rc::gen::element<std::int64_t>(1, 8, 32, 64);
  auto const rounds = *rc::gen::inRange(1, 4);
  RowMatrix tokens(count, 5);
  tokens.values = test::normal_values({1, count, 1, 5}, *rc::gen::arbitrary<unsigned>()).data;
  std::vector<std::int32_t> order = identity(count);
  double const before = energy_in_means(tokens, order, static_cast<std::size_t>(block));
  exchange_between_blocks(tokens, block, rounds, order);
  RC_ASSERT(energy_in_means(tokens, order, static_cast<std::size_t>(block)) >= before * (1.0 - 1e-5));
  std::sort(order.begin(), order.end());
  RC_ASSERT(order == identity(count));
}

}  // namespace
}  // namespace vcattn::grouping
