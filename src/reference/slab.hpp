#pragma once

// Writes the reference preparation in the prepared layout, so that a back end's slab can be compared section by section, and kernels can be
// fed without a back end.

#include <cstddef>
#include <vector>

#include "formats/prepared_layout.hpp"

namespace vcattn::reference {

struct PackedSlab {
  formats::PreparedLayout layout;
  std::vector<std::byte> bytes;
};

PackedSlab pack_slab(Problem const& problem, Options const& options);

}  // namespace vcattn::reference
