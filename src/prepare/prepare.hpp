#pragma once

// Preparation on the CPU: RoPE, K mean, gather, Hadamard, Q means, quantisation of Q and K; V means, residual, quantisation, error-mean
// compensation. Works tile by tile (128 rows), each stage a pass over the caller's tensor; all arithmetic is the fixed one of
// docs/equations.md.

#include <cstddef>
#include <span>

#include "formats/prepared_layout.hpp"

namespace vcattn::preparation {

/// Fills every section of the slab but `sequences` and `permutation`, which must hold their values already.
/// Returns the share of V's energy that the block means removed, mean over (batch, KV head); NaN without block means or keys.
double prepare_cpu(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab);

}  // namespace vcattn::preparation
