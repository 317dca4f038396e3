#include "prepare/prepare.hpp"

#include <cmath>
#include <limits>

#include "prepare/query_key.hpp"
#include "prepare/value.hpp"

namespace vcattn::preparation {

double prepare_cpu(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab) {
  auto const& l = slab.layout();
  double energy_removed = 0.0;
  std::int64_t counted = 0;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    for (std::int64_t head_kv = 0; head_kv < l.num_heads_kv; ++head_kv) {
      ValueResult const value = prepare_value(problem, options, slab, b, head_kv);
      prepare_query_key({&problem, &options, slab, b, head_kv}, value.finite);
      if (!std::isnan(value.energy_removed)) {
        energy_removed += value.energy_removed;
        ++counted;
      }
    }
  }
  return counted > 0 ? energy_removed / static_cast<double>(counted) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace vcattn::preparation
