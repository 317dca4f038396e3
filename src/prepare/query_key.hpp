#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/prepared_layout.hpp"

namespace vcattn::preparation {

/// What Q and K of one (sequence, KV head) and its group of query heads need. Rows are not rotated yet.
struct QkHead {
  Problem const* problem;
  Options const* options;
  formats::SlabView<std::byte> slab;
  std::int64_t sequence;  // index of the sequence
  std::int64_t head_kv;
};

/// Quantises K of the head and Q of its group, writes descales, multipliers, bounds, variants and LSE corrections. A head with a non-finite
/// valid key, or with `values_finite` false, gets NaN corrections in every row.
void prepare_query_key(QkHead const& head, bool values_finite);

}  // namespace vcattn::preparation
