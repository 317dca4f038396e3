#pragma once

// Checks of what a caller hands in; every public entry point goes through them.

#include "vcattn/attention.hpp"

namespace vcattn::dispatch {

/// Throws Error unless `device` is one.
void check_device(Device device);

/// Throws Error where `problem` with `options` cannot be served. Looks at shapes, strides and the small host arrays, never at tensor data
/// or the permutation.
void check_problem(Problem const& problem, Options const& options);

/// Throws Error unless the permutation maps every sequence and head onto itself with valid keys in front.
void check_permutation(Problem const& problem);

/// Throws Error unless o can take the result of a problem of that shape. `what` names it in the text.
void check_output(MutableTensorView const& o, std::array<std::int64_t, 4> const& shape);

/// Throws Error unless lse is empty or has an element for each of `rows` rows of all heads.
void check_lse(std::span<float const> lse, std::int64_t rows);

/// Throws ErrorCode::nonfinite if a valid element of Q, K or V is NaN or infinite; says which tensor, batch, row, head.
void check_finite(Problem const& problem, std::int32_t num_threads);

}  // namespace vcattn::dispatch
