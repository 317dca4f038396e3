#pragma once

// Reversals of a chain's parts, for every back end. [EQ-CHAIN]

#include <compare>
#include <cstdint>

#include "core/config.hpp"

namespace vcattn::grouping {

/// Rounding could let reversals go in circles. Up to 30 scans reach a local optimum of 256 clusters on real values.
inline constexpr int kMaxChainScans = 128;

/// Positions first..last of a path.
struct PathPart {
  std::int32_t first = 0, last = 0;

  auto operator<=>(PathPart const&) const = default;
};

/// Whether reversing `part` still adds the same to the path's length once `done` is reversed: they break different edges, and one lies
/// inside the other or they lie apart. Moves `part` to where it is then.
VCATTN_HD constexpr bool survives_reversal(PathPart& part, PathPart done) {
  bool const apart = part.last + 1 < done.first || done.last + 1 < part.first;
  bool const around = part.first < done.first && done.last < part.last;
  bool const inside = done.first < part.first && part.last < done.last;
  if (inside) part = {done.first + done.last - part.last, done.first + done.last - part.first};
  return apart || around || inside;
}

}  // namespace vcattn::grouping
