#pragma once

// Error-shaped rounding of Q and K rows. [EQ-SHAPED]
// Rounding to nearest treats every channel alike; scores do not: an error of K is only felt along directions in which queries have energy.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/isa.hpp"
#include "formats/codes.hpp"

namespace vcattn::preparation {

/// Second moment of the other operand, FP64 [width][width].
class Moment {
 public:
  explicit Moment(int width) : width_(width), values_(static_cast<std::size_t>(width) * static_cast<std::size_t>(width), 0.0) {}

  int width() const { return width_; }
  double& at(int i, int j) { return values_[static_cast<std::size_t>(i * width_ + j)]; }
  double at(int i, int j) const { return values_[static_cast<std::size_t>(i * width_ + j)]; }

  /// Adds factor * integer moment [width][width].
  void add(double factor, std::vector<double> const& integer_moment);

 private:
  int width_;
  std::vector<double> values_;
};

/// Strictly upper part of U, FP32 [width][width], zeros elsewhere.
std::vector<float> feedback_matrix(Moment moment);

/// Rounds rows one after another with feedback.
struct RowShaper {
  formats::CodeFormat format = formats::CodeFormat::e4m3;  // e4m3, int8 or nvfp4
  int width = 0;
  float limit = 0.0f;               // largest magnitude of a code; NVFP4: of a code over its scale factor
  float const* feedback = nullptr;  // [width][width]
};

/// Replaces x[width] (code units) by the values of its codes. scale_factors: NVFP4 only, UE4M3 [width / 16].
using ShapeRow = void (*)(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
ShapeRow shape_row_kernel(device::cpu::Isa isa);

}  // namespace vcattn::preparation
