#pragma once

// The inner loop of the assignment, compiled once per instruction set.

#include <cstdint>

#include "device/cpu/isa.hpp"

namespace vcattn::grouping {

/// Tokens whose products with all centroids are held at once.
inline constexpr int kAssignRows = 128;

/// For each of kAssignRows tokens r the centroid j with the smallest squared_norms[j] - 2 dots[j][r], ties to the lowest index; 0 where all
/// are NaN. dots [clusters][kAssignRows], labels [kAssignRows]. [EQ-KMEANS]
using NearestKernel = void (*)(std::int64_t clusters, float const* dots, float const* squared_norms, std::int32_t* labels);

NearestKernel nearest_kernel(device::cpu::Isa isa);

}  // namespace vcattn::grouping
