// Compiled once per instruction set (VCATTN_ISA).

#include <limits>

#include "grouping/nearest.hpp"

namespace vcattn::grouping::VCATTN_ISA {

void nearest(std::int64_t clusters, float const* dots, float const* squared_norms, std::int32_t* labels) {
  float best[kAssignRows];
  std::int32_t best_label[kAssignRows];
  for (int r = 0; r < kAssignRows; ++r) {
    best[r] = std::numeric_limits<float>::infinity();
    best_label[r] = 0;
  }
  for (std::int64_t j = 0; j < clusters; ++j) {
    float const* const dots_j = dots + j * kAssignRows;
    for (int r = 0; r < kAssignRows; ++r) {
      float const distance = squared_norms[j] - 2.0f * dots_j[r];
      bool const closer = distance < best[r];
      best[r] = closer ? distance : best[r];
      best_label[r] = closer ? static_cast<std::int32_t>(j) : best_label[r];
    }
  }
  for (int r = 0; r < kAssignRows; ++r) labels[r] = best_label[r];
}

}  // namespace vcattn::grouping::VCATTN_ISA
