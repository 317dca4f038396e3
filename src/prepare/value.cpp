#include "prepare/value.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <vector>

#include "device/cpu/parallel.hpp"
#include "formats/codes.hpp"
#include "prepare/tile.hpp"

namespace vcattn::preparation {

namespace {

using formats::CodeFormat;
using formats::kTileRows;

constexpr float kMeanQuotientMax = 32768.0f;  // |mu / v_descale| stays inside FP16 [EQ-VDESCALE]
constexpr float kDescaleFloor = 0x1p-110f;

/// Share of V's energy about its mean, in two sums over a tile.
struct Energy {
  double residual = 0.0, whole = 0.0;
};

class ValuePass {
 public:
  ValuePass(RowSource const& source, Options const& options, std::int64_t rows, std::int32_t const* permutation)
      : source_(source), options_(options), rows_(rows), permutation_(permutation) {}

  int blocks() const { return static_cast<int>(kTileRows) / options_.v_block; }
  int valid_rows(Tile const& tile, int b) const { return std::clamp(tile.count() - b * options_.v_block, 0, options_.v_block); }

  /// Sorted rows of tile j. Returns whether all were finite.
  bool load(std::int64_t j, Tile& tile) const { return tile.load(source_, j * kTileRows, rows_of_tile(rows_, j), permutation_); }

  /// Means of the blocks of a tile, [blocks][width]; 0 for a block without rows. [EQ-VSMOOTH]
  void block_means(Tile const& tile, float* means) const {
    for (int b = 0; b < blocks(); ++b) {
      float* const mean = means + b * tile.width();
      tile.column_sums(b * options_.v_block, options_.v_block, mean);
      int const valid = std::max(valid_rows(tile, b), 1);
      for (int d = 0; d < tile.width(); ++d) mean[d] /= static_cast<float>(valid);
    }
  }

  /// Residual in place of the valid rows. [EQ-VSMOOTH]
  void subtract_means(Tile& tile, float const* means) const {
    for (int r = 0; r < tile.count(); ++r) {
      float const* const mean = means + r / options_.v_block * tile.width();
      for (int d = 0; d < tile.width(); ++d) tile.row(r)[d] -= mean[d];
    }
  }

  /// Of residuals, with the block means about the mean of the head.
  Energy energy(Tile const& tile, float const* deviations) const {
    Energy sums;
    for (int r = 0; r < tile.count(); ++r) {
      float const* const mean = deviations + r / options_.v_block * tile.width();
      for (int d = 0; d < tile.width(); ++d) {
        double const residual = static_cast<double>(tile.row(r)[d]);
        double const whole = residual + static_cast<double>(mean[d]);
        sums.residual += residual * residual;
        sums.whole += whole * whole;
      }
    }
    return sums;
  }

 private:
  RowSource const& source_;
  Options const& options_;
  std::int64_t rows_;
  std::int32_t const* permutation_;
};

/// Raises amax [width] to the largest magnitudes of `rows` rows of values.
void raise_amax(float const* values, std::int64_t rows, int width, float* amax) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int d = 0; d < width; ++d) amax[d] = core::max_f32(amax[d], core::abs_f32(values[r * width + d]));
  }
}

/// [EQ-VDESCALE] from the largest residuals and means of every channel.
std::vector<float> value_descales(CodeFormat format, bool per_channel, std::vector<float> residual_amax, std::vector<float> mean_amax) {
  if (formats::code_max(format) == 0.0f) return std::vector<float>(residual_amax.size(), 1.0f);
  if (!per_channel) {
    std::fill(residual_amax.begin(), residual_amax.end(), *std::max_element(residual_amax.begin(), residual_amax.end()));
    std::fill(mean_amax.begin(), mean_amax.end(), *std::max_element(mean_amax.begin(), mean_amax.end()));
  }
  std::vector<float> descale(residual_amax.size());
  for (std::size_t d = 0; d < descale.size(); ++d) {
    float const needed = core::max_f32(residual_amax[d] / formats::code_max(format), mean_amax[d] / kMeanQuotientMax);
    descale[d] = needed < kDescaleFloor ? 1.0f : needed;
  }
  return descale;
}

}  // namespace

ValueResult prepare_value(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab, std::int64_t sequence,
                          std::int64_t head_kv) {
  auto const& l = slab.layout();
  auto const& s = slab.sequences()[static_cast<std::size_t>(sequence)];
  int const width = static_cast<int>(l.head_dim_padded);
  CodeFormat const format = formats::code_format(options.v);
  RowSource const source(problem.v, !problem.cu_seqlens_q.empty(), sequence, s.row_begin_kv, head_kv, width, std::nullopt);
  std::int32_t const* const permutation = slab.section<std::int32_t>(l.permutation) + slab.row_kv(s, head_kv);
  std::int64_t const head_index = sequence * l.num_heads_kv + head_kv;
  ValueResult result;
  ValuePass const pass(source, options, s.seqlen_kv, permutation);
  auto const rows_of_zeros = [width](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count * width), 0.0f); };
  auto const row_of = [width](std::vector<float>& rows, std::int64_t i) { return rows.data() + i * width; };

  // First sweep: what the descales need.
  std::vector<float> tile_sums = rows_of_zeros(options.v_mean ? s.tiles_kv : 0);
  std::vector<float> block_means = rows_of_zeros(options.v_mean ? s.tiles_kv * pass.blocks() : 0);
  std::vector<float> tile_amax = rows_of_zeros(s.tiles_kv);
  std::atomic<bool> all_finite{true};
  device::cpu::parallel_for(options.num_threads, s.tiles_kv, [&](std::int64_t j) {
    Tile tile(width);
    if (!pass.load(j, tile)) all_finite = false;
    if (options.v_mean) {
      tile.column_sums(0, tile.count(), row_of(tile_sums, j));
      pass.block_means(tile, row_of(block_means, j * pass.blocks()));
      pass.subtract_means(tile, row_of(block_means, j * pass.blocks()));
    }
    raise_amax(tile.row(0), tile.count(), width, row_of(tile_amax, j));
  });
  result.finite = all_finite;
  std::vector<float> residual_amax = rows_of_zeros(1);
  raise_amax(tile_amax.data(), s.tiles_kv, width, residual_amax.data());

  // What is stored of the block means is their distance from the mean g of the head, which is added back at the end of attention.
  std::vector<float> global_mean = rows_of_zeros(1);
  std::vector<float> mean_amax = rows_of_zeros(1);
  std::vector<float> deviations = block_means;
  if (options.v_mean) {
    if (s.seqlen_kv > 0) mean_of_tile_sums(tile_sums, width, s.seqlen_kv, global_mean.data());
    std::copy(global_mean.begin(), global_mean.end(), slab.section<float>(l.v_global_mean) + head_index * width);
    std::int64_t const used_blocks = formats::ceil_div(s.seqlen_kv, options.v_block);
    for (std::int64_t b = 0; b < used_blocks; ++b) {
      for (int d = 0; d < width; ++d) row_of(deviations, b)[d] -= global_mean[static_cast<std::size_t>(d)];
    }
    raise_amax(deviations.data(), used_blocks, width, mean_amax.data());
  }

  std::vector<float> const descale = value_descales(format, options.v_per_channel, residual_amax, mean_amax);
  std::copy(descale.begin(), descale.end(), slab.section<float>(l.v_descale) + head_index * width);

  // Second sweep: codes of every channel, [width][128 slots]; block means with what rounding left over, and what FP16 loses of them.
  std::vector<Energy> energies(static_cast<std::size_t>(s.tiles_kv));
  std::vector<float> lost = rows_of_zeros(options.v_mean && options.emc ? s.tiles_kv : 0);
  std::int64_t const first_tile = slab.tile_kv(s, head_kv, 0);
  std::int64_t const row_bytes = kTileRows * l.v_bits / 8;
  constexpr std::int64_t kGroups = kTileRows / core::kNvfp4Group;
  device::cpu::parallel_for(options.num_threads, s.tiles_kv, [&](std::int64_t j) {
    Tile tile(width);
    pass.load(j, tile);
    if (options.v_mean) {
      pass.subtract_means(tile, row_of(block_means, j * pass.blocks()));
      energies[static_cast<std::size_t>(j)] = pass.energy(tile, row_of(deviations, j * pass.blocks()));
    }
    std::array<float, kTileRows> channel{};
    std::array<float, kTileRows> decoded{};
    for (int d = 0; d < width; ++d) {
      std::int64_t const row = (first_tile + j) * width + d;
      std::byte* const codes = slab.section<std::byte>(l.v_codes) + row * row_bytes;
      std::uint8_t* const factors = l.v_scale_factors.bytes == 0 ? nullptr : slab.section<std::uint8_t>(l.v_scale_factors) + row * kGroups;
      float const channel_descale = descale[static_cast<std::size_t>(d)];
      for (int slot = 0; slot < kTileRows; ++slot) channel[static_cast<std::size_t>(slot)] = tile.row(formats::key_of_slot(slot))[d];
      // [EQ-NVFP4-V] 16 slots share a scale
      formats::encode_row(format, channel.data(), static_cast<int>(kTileRows), 1.0f / channel_descale, codes, factors);
      if (!options.v_mean || !options.emc) continue;
      formats::decode_row(format, codes, factors, static_cast<int>(kTileRows), decoded.data());
      for (int r = 0; r < tile.count(); ++r) {
        tile.row(r)[d] -= decoded[static_cast<std::size_t>(formats::slot_of_key(r))] * channel_descale;
      }
    }
    if (!options.v_mean) return;
    auto* const stored = slab.section<std::uint16_t>(l.v_mean) + (first_tile + j) * pass.blocks() * width;
    std::vector<float> error(static_cast<std::size_t>(width), 0.0f);
    for (int b = 0; b < pass.blocks(); ++b) {
      int const valid = pass.valid_rows(tile, b);
      if (options.emc && valid > 0) {  // [EQ-EMC] the rows hold R - dequantised R now
        tile.column_sums(b * options.v_block, options.v_block, error.data());
        for (float& e : error) e /= static_cast<float>(valid);
      } else {
        std::fill(error.begin(), error.end(), 0.0f);
      }
      float const* const deviation = row_of(deviations, j * pass.blocks() + b);
      for (int d = 0; d < width; ++d) {
        float const mean = deviation[d] + error[static_cast<std::size_t>(d)];
        float const channel_descale = descale[static_cast<std::size_t>(d)];
        // A mean beyond FP32 marks its own head through the global mean; as a number here it would reach the next head of a kernel's
        // window.
        float const in_descales = mean * (1.0f / channel_descale);
        std::uint16_t const code = core::is_finite(in_descales) ? core::fp16_encode(in_descales) : std::uint16_t{0};
        stored[b * width + d] = code;
        if (!options.emc) continue;
        float const lost_by_fp16 = core::fma_f32(-core::fp16_decode(code), channel_descale, mean);
        float& lost_of_tile = row_of(lost, j)[d];
        lost_of_tile = core::fma_f32(static_cast<float>(valid), lost_by_fp16, lost_of_tile);
      }
    }
  });
  if (!lost.empty()) {  // [EQ-EMC] what is added to O makes up for the stored block means
    std::vector<float> mean_lost(static_cast<std::size_t>(width));
    mean_of_tile_sums(lost, width, s.seqlen_kv, mean_lost.data());
    float* const stored = slab.section<float>(l.v_global_mean) + head_index * width;
    for (int d = 0; d < width; ++d) stored[d] += mean_lost[static_cast<std::size_t>(d)];
  }
  Energy total;
  for (Energy const& tile : energies) {
    total.residual += tile.residual;
    total.whole += tile.whole;
  }
  result.energy_removed = total.whole > 0.0 ? 1.0 - total.residual / total.whole : std::numeric_limits<double>::quiet_NaN();
  return result;
}

}  // namespace vcattn::preparation
