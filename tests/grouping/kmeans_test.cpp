#include "grouping/kmeans.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "grouping/nearest.hpp"
#include "values.hpp"

namespace vcattn::grouping {
namespace {

RowMatrix matrix(std::int64_t count, std::int64_t dim, std::vector<float> values) {
  RowMatrix rows(count, dim);
  rows.values = std::move(values);
  return rows;
}

TEST(Kmeans, StridedRowsAreTheMiddlesOfEqualParts) {
  EXPECT_EQ(strided_row(0, 4, 128), 16);
  EXPECT_EQ(strided_row(3, 4, 128), 112);
  EXPECT_EQ(strided_row(0, 1, 1), 0);
  EXPECT_EQ(strided_row(6, 7, 7), 6);
}

TEST(Kmeans, AssignsToTheNearestAndTiesToTheLowestIndex) {
  RowMatrix const tokens = matrix(5, 2, {0, 0, 1, 0, 2, 0, 3, 0, 9, 0});
  RowMatrix const centroids = matrix(4, 2, {2, 0, 0, 0, 2, 0, 10, 0});
  std::vector<std::int32_t> labels(5);
  assign(tokens, centroids, labels);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{1, 0, 0, 0, 3}));
}

TEST(Kmeans, AssignAgreesWithBruteForceAcrossChunks) {
  auto const values = test::normal_values({1, 3 * kAssignRows + 17, 1, 40}, 3);
  RowMatrix const tokens = matrix(values.shape.seqlen, 40, values.data);
  RowMatrix const centroids = matrix(19, 40, test::normal_values({1, 19, 1, 40}, 4).data);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(tokens.count));
  assign(tokens, centroids, labels);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    auto const distance = [&](std::int64_t j) {
      double sum = 0.0;
      for (std::int64_t c = 0; c < 40; ++c) {
        double const x = static_cast<double>(tokens.row(i)[c]) - static_cast<double>(centroids.row(j)[c]);
        sum += x * x;
      }
      return sum;
    };
    double best = std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < centroids.count; ++j) best = std::min(best, distance(j));
    EXPECT_LE(distance(labels[static_cast<std::size_t>(i)]), best * (1.0 + 1e-5)) << "token " << i;
  }
}

TEST(Kmeans, EveryInstructionSetBreaksTiesAlike) {
  constexpr std::int64_t kClusters = 5;
  std::vector<float> dots(kClusters * kAssignRows);
  for (std::size_t i = 0; i < dots.size(); ++i) dots[i] = static_cast<float>(i * 7 % 11);
  dots[3] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> const norms{4, 4, 2, 2, 8};
  std::vector<std::int32_t> expected(kAssignRows);
  for (std::size_t r = 0; r < kAssignRows; ++r) {
    float best = std::numeric_limits<float>::infinity();
    for (std::size_t j = 0; j < kClusters; ++j) {
      float const distance = norms[j] - 2.0f * dots[j * kAssignRows + r];
      if (distance < best) {
        best = distance;
        expected[r] = static_cast<std::int32_t>(j);
      }
    }
  }
  for (device::cpu::Isa const isa : device::cpu::available_isas()) {
    std::vector<std::int32_t> labels(kAssignRows, -1);
    nearest_kernel(isa)(kClusters, dots.data(), norms.data(), labels.data());
    EXPECT_EQ(labels, expected) << device::cpu::isa_name(isa);
  }
}

TEST(Kmeans, PathKeysAscendAlongThePath) {
  RowMatrix const centroids = matrix(3, 2, {10, 0, 0, 0, 20, 0});
  RowMatrix const tokens = matrix(6, 2, {9, 0, 11, 0, -1, 0, 1, 0, 19, 0, 21, 0});
  std::vector<std::int32_t> labels(6);
  std::vector<float> keys(6);
  assign(tokens, centroids, labels, std::vector<std::int32_t>{1, 0, 2}, keys);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2}));
  for (std::size_t first : {0u, 2u, 4u}) EXPECT_LT(keys[first], keys[first + 1]);
}

TEST(Kmeans, MembersAreStable) {
  Members const members = collect_members(std::vector<std::int32_t>{2, 0, 2, 0, 2}, 4);
  EXPECT_EQ(members.rows, (std::vector<std::int32_t>{1, 3, 0, 2, 4}));
  EXPECT_EQ(members.begin, (std::vector<std::int32_t>{0, 2, 2, 5, 5}));
}

TEST(Kmeans, CentroidsBecomeMeansAndEmptyOnesStay) {
  RowMatrix const tokens = matrix(3, 2, {1, 2, 3, 6, 8, 8});
  RowMatrix centroids = matrix(3, 2, {7, 7, 5, 5, 9, 9});
  update_centroids(tokens, collect_members(std::vector<std::int32_t>{0, 0, 2}, 3), centroids);
  EXPECT_EQ(centroids.values, (std::vector<float>{2, 4, 5, 5, 8, 8}));
}

}  // namespace
}  // namespace vcattn::grouping
