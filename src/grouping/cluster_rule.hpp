#pragma once

// How many clusters a sequence gets, for every back end.

#include <algorithm>
#include <cstdint>

#include "core/config.hpp"
#include "vcattn/options.hpp"

namespace vcattn::grouping {

/// rows / rows_per_cluster inside low..high.
struct ClusterRule {
  std::int32_t low = 0, high = 0, rows_per_cluster = 1;

  VCATTN_HD constexpr std::int32_t wanted(std::int64_t rows) const {
    std::int64_t const clusters = rows / rows_per_cluster;
    return clusters < low ? low : clusters > high ? high : static_cast<std::int32_t>(clusters);
  }
  /// Never more than rows.
  VCATTN_HD constexpr std::int32_t count(std::int64_t rows) const {
    std::int32_t const clusters = wanted(rows);
    return rows < clusters ? static_cast<std::int32_t>(rows) : clusters;
  }
  ClusterRule at_most(std::int32_t clusters) const { return {std::min(low, clusters), std::min(high, clusters), rows_per_cluster}; }
};

/// For options.clusters = 0. Source: docs/experiments/grouping.md.
constexpr ClusterRule default_cluster_rule(GroupOrder order) {
  return order == GroupOrder::label ? ClusterRule{8, 64, 500} : ClusterRule{4, 512, 128};
}

/// What `options` ask for in a resolved order other than sequence.
constexpr ClusterRule cluster_rule(Options const& options, GroupOrder order) {
  return options.clusters > 0 ? ClusterRule{options.clusters, options.clusters, 1} : default_cluster_rule(order);
}

}  // namespace vcattn::grouping
