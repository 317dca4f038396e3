#pragma once

// k-means of one (batch, kv head) on FP32 rows. Runs inside the caller's task arena; results do not depend on the number of threads: every
// sum has one owner that adds in ascending row order.

#include <cstdint>
#include <span>
#include <vector>

namespace vcattn::grouping {

/// Contiguous FP32 rows [count, dim].
struct RowMatrix {
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::vector<float> values;

  RowMatrix() = default;
  RowMatrix(std::int64_t count_, std::int64_t dim_)
      : count(count_), dim(dim_), values(static_cast<std::size_t>(count_) * static_cast<std::size_t>(dim_)) {}
  float* row(std::int64_t i) { return values.data() + i * dim; }
  float const* row(std::int64_t i) const { return values.data() + i * dim; }
};

/// Rows of each cluster: cluster j owns rows[begin[j]] .. rows[begin[j + 1] - 1], ascending.
struct Members {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> begin;

  std::span<std::int32_t const> of(std::int64_t cluster) const {
    auto const j = static_cast<std::size_t>(cluster);
    return std::span(rows).subspan(static_cast<std::size_t>(begin[j]), static_cast<std::size_t>(begin[j + 1] - begin[j]));
  }
};

/// Row indices of the initial centroids: floor((i + 1/2) n / k). [EQ-KMEANS]
std::int64_t strided_row(std::int64_t index, std::int64_t clusters, std::int64_t count);

/// ||row||^2 of every row.
std::vector<float> squared_norms(RowMatrix const& rows);

/// Index of the nearest centroid of every token. [EQ-KMEANS]
///
/// Where path_keys is given, and `path` is an order of the clusters, it gets for every token d^2(predecessor) - d^2(successor) of its
/// cluster on the path, which ascends along the path; at the ends the cluster itself stands in for the missing neighbour. [EQ-CHAIN]
void assign(RowMatrix const& tokens, RowMatrix const& centroids, std::span<std::int32_t> labels, std::span<std::int32_t const> path = {},
            std::span<float> path_keys = {});

/// Lists the rows of each cluster.
Members collect_members(std::span<std::int32_t const> labels, std::int64_t clusters);

/// Moves every centroid to the mean of its rows; an empty cluster keeps its centroid. [EQ-KMEANS]
void update_centroids(RowMatrix const& tokens, Members const& members, RowMatrix& centroids);

}  // namespace vcattn::grouping
