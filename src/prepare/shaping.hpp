#pragma once

// Error-shaped rounding of Q and K rows. [EQ-SHAPED]
// Rounding to nearest treats every channel alike; scores do not: an error of K is only felt along directions in which queries have energy.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cpu/isa.hpp"
#include "formats/codes.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn::preparation {

/// Channels that pass their errors on to each other in FP32; to later ones they do it as integers.
inline constexpr int kShapedBlock = 16;
/// Integer steps of an error in one code unit.
inline constexpr float kErrorSteps = 64.0f;

/// Added to a diagonal with a mean of 1: keeps the factorisation well conditioned and channels without energy in place.
inline constexpr float kMomentDamping = 0.01f;
/// Tiles of a head whose rows make up its second moment: every n-th, no more than 64.
inline constexpr std::int64_t kMomentTiles = 64;
constexpr std::int64_t moment_tile_step(std::int64_t tiles) { return std::max<std::int64_t>(1, formats::ceil_div(tiles, kMomentTiles)); }

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

/// W, by which the error of a channel moves the targets of later ones.
struct Feedback {
  std::vector<float> within;   ///< [width][width]; used inside blocks of kShapedBlock channels
  std::vector<float> integer;  ///< [width][width]; from blocks to later ones: integers in -127..127, zeros elsewhere
  std::vector<float> descale;  ///< [width]: of the integers of a column
};
Feedback feedback_of(Moment const& moment);

/// Rounds rows one after another with feedback.
struct RowShaper {
  formats::CodeFormat format = formats::CodeFormat::e4m3;  // e4m3, int8 or nvfp4
  int width = 0;
  float limit = 0.0f;  // largest magnitude of a code; NVFP4: of a code over its scale factor
  Feedback const* feedback = nullptr;
};

/// Replaces x[width] (code units) by the values of its codes. scale_factors: NVFP4 only, UE4M3 [width / 16].
using ShapeRow = void (*)(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
ShapeRow shape_row_kernel(device::cpu::Isa isa);

}  // namespace vcattn::preparation
