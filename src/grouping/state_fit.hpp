#pragma once

#include <cstdint>
#include <span>

#include "vcattn/grouping.hpp"

namespace vcattn::grouping {

/// Throws invalid_argument, naming what differs, unless `state` was made from values of this shape, dtype and number of valid rows [B].
void check_state_fits(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows);

}  // namespace vcattn::grouping
