#include "grouping/grouping_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "formats/prepared_layout.hpp"
#include "grouping/cluster_rule.hpp"
#include "grouping/order.hpp"

namespace vcattn::grouping {

namespace {

void check_range(char const* option, std::int32_t low, std::int32_t high, std::int32_t got) {
  if (got >= low && got <= high) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} must lie in {}..{}, got {}: change the option", option, low, high, got));
}

}  // namespace

void check_options(Options const& options) {
  constexpr std::int32_t kMaxIterations = 1000;
  check_range("clusters", 0, kMaxClusters, options.clusters);
  check_range("iterations", 1, kMaxIterations, options.iterations);
  check_range("warm_iterations", 1, kMaxIterations, options.warm_iterations);
  check_range("v_block", 1, static_cast<std::int32_t>(formats::kTileRows), options.v_block);
  check_range("num_threads", 0, std::numeric_limits<std::int32_t>::max(), options.num_threads);
}

std::int32_t num_clusters(Options const& options, GroupOrder order, std::int32_t num_valid) {
  return order == GroupOrder::sequence ? 0 : cluster_rule(options, order).count(num_valid);
}

std::int32_t num_clusters(Options const& options, std::span<std::int32_t const> valid_rows) {
  GroupOrder const order = formats::resolve_order(options, /*causal=*/false);
  std::int32_t clusters = 0;
  for (std::int32_t const num_valid : valid_rows) clusters = std::max(clusters, num_clusters(options, order, num_valid));
  return clusters;
}

}  // namespace vcattn::grouping
