#include "prepare/tile.hpp"

#include <algorithm>
#include <atomic>

#include "device/cpu/parallel.hpp"
#include "formats/tensor_rows.hpp"

namespace vcattn::preparation {

using formats::kTileRows;

bool RowSource::load(std::int64_t row, float* out) const {
  std::int64_t const head_dim = tensor_->head_dim();
  formats::read_row(*tensor_, origin_ + row * tensor_->stride[1], out);
  bool const finite = std::all_of(out, out + head_dim, [](float x) { return core::is_finite(x); });
  std::fill(out + (finite ? head_dim : 0), out + head_dim_padded_, 0.0f);
  if (finite && rope_ != nullptr) {
    std::int64_t const half = rope_->rotary_dim / 2;
    core::rope_row(out + rope_->first_channel, rope_->cos + row * half, rope_->sin + row * half, static_cast<int>(rope_->rotary_dim),
                   rope_->style == RopeStyle::interleaved);
  }
  return finite;
}

bool Tile::load(RowSource const& source, std::int64_t begin, int count, std::int32_t const* permutation, bool* finite) {
  count_ = count;
  bool all_finite = true;
  for (int r = 0; r < count; ++r) {
    std::int64_t const row_index = permutation != nullptr ? permutation[begin + r] : begin + r;
    bool const row_finite = source.load(row_index, row(r));
    if (finite != nullptr) finite[r] = row_finite;
    all_finite = all_finite && row_finite;
  }
  std::fill(row(count), row(0) + kTileRows * width_, 0.0f);
  return all_finite;
}

void Tile::column_sums(int begin, int rows, float* sums) const {
  constexpr int kPartials = core::kRowPartials;
  float partials[kPartials][256] = {};
  int const end = std::min(begin + rows, count_);
  for (int r = begin; r < end; ++r) {
    float* const partial = partials[(r - begin) % kPartials];
    for (int d = 0; d < width_; ++d) partial[d] += row(r)[d];
  }
  for (int stride = kPartials / 2; stride >= 1; stride /= 2) {
    for (int k = 0; k < stride; ++k) {
      for (int d = 0; d < width_; ++d) partials[k][d] += partials[k + stride][d];
    }
  }
  std::copy_n(partials[0], width_, sums);
}

float Tile::amax(int begin, int rows) const {
  float largest = 0.0f;
  float const* const first = row(begin);
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(rows) * width_; ++i) largest = core::max_f32(largest, core::abs_f32(first[i]));
  return largest;
}

void mean_of_tile_sums(std::span<float const> tile_sums, int width, std::int64_t count, float* mean) {
  auto const tiles = static_cast<std::int64_t>(tile_sums.size()) / width;
  for (int d = 0; d < width; ++d) {
    float partials[core::kTilePartials] = {};
    for (std::int64_t j = 0; j < tiles; ++j) partials[j % core::kTilePartials] += tile_sums[static_cast<std::size_t>(j * width + d)];
    mean[d] = core::tree_sum(partials, core::kTilePartials) / static_cast<float>(count);
  }
}

std::vector<float> column_means(RowSource const& source, std::int64_t rows, std::int32_t num_threads, bool* finite) {
  int const width = source.head_dim_padded();
  std::vector<float> mean(static_cast<std::size_t>(width), 0.0f);
  if (rows == 0) return mean;
  std::int64_t const tiles = formats::ceil_div(rows, kTileRows);
  std::vector<float> sums(static_cast<std::size_t>(tiles * width));
  std::atomic<bool> all_finite{true};
  device::cpu::parallel_for(num_threads, tiles, [&](std::int64_t j) {
    Tile tile(width);
    int const count = rows_of_tile(rows, j);
    if (!tile.load(source, j * kTileRows, count, nullptr)) all_finite = false;
    tile.column_sums(0, count, sums.data() + j * width);
  });
  mean_of_tile_sums(sums, width, rows, mean.data());
  if (!all_finite) *finite = false;
  return mean;
}

}  // namespace vcattn::preparation
