#pragma once

// What grouping takes from Options, on the CPU.

#include <cstdint>
#include <span>

#include "vcattn/options.hpp"

namespace vcattn::grouping {

/// Throws invalid_argument where an option that grouping reads is out of its range.
void check_options(Options const& options);

/// Clusters of one sequence, never more than its rows; 0 in sequence order. `order` is resolved.
std::int32_t num_clusters(Options const& options, GroupOrder order, std::int32_t num_valid);

/// Clusters that a state has for sequences of so many valid rows [B]: what the longest one gets.
std::int32_t num_clusters(Options const& options, std::span<std::int32_t const> valid_rows);

}  // namespace vcattn::grouping
