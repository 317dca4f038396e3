#pragma once

// One tile of 128 rows in FP32, read from a caller's tensor.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/fixed_order.hpp"
#include "core/hadamard.hpp"
#include "core/rope.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn::preparation {

/// Rows of one (sequence, head) of a caller's tensor.
class RowSource {
 public:
  RowSource(TensorView const& tensor, bool varlen, std::int64_t sequence, std::int64_t row_begin, std::int64_t head,
            std::int64_t head_dim_padded, std::optional<Rope> const& rope)
      : tensor_(&tensor), head_dim_padded_(head_dim_padded), rope_(rope ? &*rope : nullptr) {
    origin_ = (varlen ? row_begin * tensor.stride[1] : sequence * tensor.stride[0]) + head * tensor.stride[2];
  }

  int head_dim_padded() const { return static_cast<int>(head_dim_padded_); }

  /// Row `row` of the sequence, rotated, zero beyond head_dim. A row with a non-finite value is returned as zeros and reported by `false`.
  bool load(std::int64_t row, float* out) const;

 private:
  TensorView const* tensor_;
  std::int64_t origin_ = 0;
  std::int64_t head_dim_padded_;
  Rope const* rope_;
};

/// FP32 rows [128][head_dim_padded]; rows from `count` on are zero.
class Tile {
 public:
  explicit Tile(int head_dim_padded)
      : width_(head_dim_padded), values_(static_cast<std::size_t>(formats::kTileRows) * static_cast<std::size_t>(head_dim_padded)) {}

  int width() const { return width_; }
  int count() const { return count_; }
  float* row(int r) { return values_.data() + static_cast<std::ptrdiff_t>(r) * width_; }
  float const* row(int r) const { return values_.data() + static_cast<std::ptrdiff_t>(r) * width_; }

  /// Rows `begin` .. of `source` (through `permutation` where given), `count` of them. Returns whether all were finite; `finite[r]` says
  /// which.
  bool load(RowSource const& source, std::int64_t begin, int count, std::int32_t const* permutation, bool* finite = nullptr);

  void subtract(float const* channel_values) {
    for (int r = 0; r < count_; ++r) {
      for (int d = 0; d < width_; ++d) row(r)[d] -= channel_values[d];
    }
  }
  void hadamard() {
    for (int r = 0; r < count_; ++r) core::hadamard_row(row(r), width_);
  }

  /// Column sums of rows [begin, begin + rows) that are valid. [EQ-FIXED-ORDER]
  void column_sums(int begin, int rows, float* sums) const;

  /// Largest magnitude of rows [begin, begin + rows).
  float amax(int begin, int rows) const;

 private:
  int width_;
  int count_ = 0;
  std::vector<float> values_;
};

/// Sums over the tiles of a sequence of per-tile column sums [tiles][width], in fixed order, divided by `count`. [EQ-FIXED-ORDER]
void mean_of_tile_sums(std::span<float const> tile_sums, int width, std::int64_t count, float* mean);

/// Rows of tile `j` of a sequence of `rows` rows.
inline int rows_of_tile(std::int64_t rows, std::int64_t j) {
  std::int64_t const left = rows - j * formats::kTileRows;
  return static_cast<int>(left < formats::kTileRows ? left : formats::kTileRows);
}

/// Means over rows [0, rows) of a source, in the caller's order, [head_dim_padded]; zeros without rows. Sets *finite to false if a value is
/// not.
std::vector<float> column_means(RowSource const& source, std::int64_t rows, std::int32_t num_threads, bool* finite);

}  // namespace vcattn::preparation
