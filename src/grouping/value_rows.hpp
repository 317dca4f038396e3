#pragma once

// Value rows of one (batch, kv head) as FP32, and the checks that every entry point of grouping makes.

#include <cstdint>
#include <span>
#include <vector>

#include "vcattn/types.hpp"

namespace vcattn::grouping {

/// out[c] = v[batch, row, head, c] for c in [0, head_dim).
void read_row(TensorView const& v, std::int64_t batch, std::int64_t row, std::int64_t head, float* out);

/// Checks the view; returns the valid rows of each batch entry [B] (`seqused_k`, or all rows where it is empty).
std::vector<std::int32_t> checked_valid_rows(TensorView const& v, std::span<std::int32_t const> seqused_k);

}  // namespace vcattn::grouping
