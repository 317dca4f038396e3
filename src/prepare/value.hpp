#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/prepared_layout.hpp"

namespace vcattn::preparation {

struct ValueResult {
  bool finite = true;
  double energy_removed = 0.0;  // NaN without block means or keys
};

/// Block means, residual, codes (transposed, slots permuted), error-mean compensation of the block means and of the head's mean, of V of
/// one (sequence, KV head).
ValueResult prepare_value(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab, std::int64_t sequence,
                          std::int64_t head_kv);

}  // namespace vcattn::preparation
