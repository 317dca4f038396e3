#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "vcattn/grouping.hpp"

namespace vcattn::grouping {

/// Memory that a state is in.
struct StatePlace {
  Device device = Device::cpu;
  std::int32_t ordinal = 0;  ///< of a CUDA device
};

/// A state of values of that shape and so many valid rows [B], still without its arrays.
GroupingState empty_state(TensorView const& v, std::span<std::int32_t const> valid_rows, std::int32_t clusters, StatePlace place = {});

/// The arrays of a state in device memory, to group into from a cold start.
GroupingBuffers device_buffers(GroupingState const& state);

/// What `state` differs in from one of values of this shape, dtype and number of valid rows [B] in that memory; empty if it fits.
std::string misfit(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, StatePlace place = {});

/// Throws invalid_argument with that text.
void check_state_fits(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, StatePlace place = {});

/// The same for a warm start with so many clusters.
void check_warm_state(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, std::int32_t clusters,
                      StatePlace place = {});

}  // namespace vcattn::grouping
