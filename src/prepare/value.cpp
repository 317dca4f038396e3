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

/// Per-tile facts that the descales need.
struct TileStats {
  std::vector<float> residual_amax, mean_amax;  // [width]
  double residual_energy = 0.0, energy = 0.0;
};

class ValuePass {
 public:
  ValuePass(RowSource const& source, Options const& options, std::int64_t rows, std::int32_t const* permutation, float const* global_mean)
      : source_(source), options_(options), rows_(rows), permutation_(permutation), global_mean_(global_mean) {}

  /// Residual of tile j in place of its rows, and the block means mu0 [blocks][width]. [EQ-VSMOOTH]
  bool load_residual(std::int64_t j, Tile& tile, std::vector<float>& block_means) const {
    bool const finite = tile.load(source_, j * kTileRows, rows_of_tile(rows_, j), permutation_);
    if (!options_.v_mean) return finite;
    tile.subtract(global_mean_);
    int const width = tile.width();
    block_means.assign(static_cast<std::size_t>(blocks() * width), 0.0f);
    for (int b = 0; b < blocks(); ++b) {
      int const valid = valid_rows(tile, b);
      if (valid == 0) continue;
      float* const mean = block_means.data() + b * width;
      tile.column_sums(b * options_.v_block, options_.v_block, mean);
      for (int d = 0; d < width; ++d) mean[d] /= static_cast<float>(valid);
      for (int r = b * options_.v_block; r < b * options_.v_block + valid; ++r) {
        for (int d = 0; d < width; ++d) tile.row(r)[d] -= mean[d];
      }
    }
    return finite;
  }

  int blocks() const { return static_cast<int>(kTileRows) / options_.v_block; }
  int valid_rows(Tile const& tile, int b) const { return std::clamp(tile.count() - b * options_.v_block, 0, options_.v_block); }

  TileStats stats(Tile const& tile, std::vector<float> const& block_means) const {
    int const width = tile.width();
    TileStats result;
    result.residual_amax.assign(static_cast<std::size_t>(width), 0.0f);
    result.mean_amax.assign(static_cast<std::size_t>(width), 0.0f);
    for (int r = 0; r < tile.count(); ++r) {
      for (int d = 0; d < width; ++d) {
        float const x = tile.row(r)[d];
        float& amax = result.residual_amax[static_cast<std::size_t>(d)];
        amax = core::max_f32(amax, core::abs_f32(x));
        if (options_.v_mean) {
          double const residual = static_cast<double>(x);
          double const mean = static_cast<double>(block_means[static_cast<std::size_t>(r / options_.v_block * width + d)]);
          result.residual_energy += residual * residual;
          result.energy += (residual + mean) * (residual + mean);
        }
      }
    }
    for (std::size_t i = 0; i < block_means.size(); ++i) {
      float& amax = result.mean_amax[i % static_cast<std::size_t>(width)];
      amax = core::max_f32(amax, core::abs_f32(block_means[i]));
    }
    return result;
  }

 private:
  RowSource const& source_;
  Options const& options_;
  std::int64_t rows_;
  std::int32_t const* permutation_;
  float const* global_mean_;
};

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

  std::vector<float> global_mean(static_cast<std::size_t>(width), 0.0f);
  if (options.v_mean) {
    global_mean = column_means(source, s.seqlen_kv, options.num_threads, &result.finite);
    std::copy(global_mean.begin(), global_mean.end(), slab.section<float>(l.v_global_mean) + head_index * width);
  }
  ValuePass const pass(source, options, s.seqlen_kv, permutation, global_mean.data());

  // First sweep: what the descales need.
  std::vector<TileStats> stats(static_cast<std::size_t>(s.tiles_kv));
  std::atomic<bool> all_finite{result.finite};
  device::cpu::parallel_for(options.num_threads, s.tiles_kv, [&](std::int64_t j) {
    Tile tile(width);
    std::vector<float> block_means;
    if (!pass.load_residual(j, tile, block_means)) all_finite = false;
    stats[static_cast<std::size_t>(j)] = pass.stats(tile, block_means);
  });
  result.finite = all_finite;
  std::vector<float> residual_amax(static_cast<std::size_t>(width), 0.0f);
  std::vector<float> mean_amax(static_cast<std::size_t>(width), 0.0f);
  double residual_energy = 0.0;
  double energy = 0.0;
  for (TileStats const& t : stats) {
    for (std::size_t d = 0; d < residual_amax.size(); ++d) {
      residual_amax[d] = core::max_f32(residual_amax[d], t.residual_amax[d]);
      mean_amax[d] = core::max_f32(mean_amax[d], t.mean_amax[d]);
    }
    residual_energy += t.residual_energy;
    energy += t.energy;
  }
  result.energy_removed = options.v_mean && energy > 0.0 ? 1.0 - residual_energy / energy : std::numeric_limits<double>::quiet_NaN();

  std::vector<float> const descale = value_descales(format, options.v_per_channel, residual_amax, mean_amax);
  std::copy(descale.begin(), descale.end(), slab.section<float>(l.v_descale) + head_index * width);

  // Second sweep: codes of every channel, [width][128 slots]; block means with what rounding left over, and what FP16 loses of them.
  std::vector<float> lost(options.v_mean && options.emc ? static_cast<std::size_t>(s.tiles_kv * width) : 0, 0.0f);  // [tiles][width]
  std::int64_t const first_tile = slab.tile_kv(s, head_kv, 0);
  std::int64_t const row_bytes = kTileRows * l.v_bits / 8;
  constexpr std::int64_t kGroups = kTileRows / core::kNvfp4Group;
  device::cpu::parallel_for(options.num_threads, s.tiles_kv, [&](std::int64_t j) {
    Tile tile(width);
    std::vector<float> block_means;
    pass.load_residual(j, tile, block_means);
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
      for (int d = 0; d < width; ++d) {
        float const mean = block_means[static_cast<std::size_t>(b * width + d)] + error[static_cast<std::size_t>(d)];
        float const channel_descale = descale[static_cast<std::size_t>(d)];
        // A mean beyond FP32 marks its own head through the global mean; as a number here it would reach the next head of a kernel's
        // window.
        float const in_descales = mean * (1.0f / channel_descale);
        std::uint16_t const code = core::is_finite(in_descales) ? core::fp16_encode(in_descales) : std::uint16_t{0};
        stored[b * width + d] = code;
        if (!options.emc) continue;
        float const lost_by_fp16 = core::fma_f32(-core::fp16_decode(code), channel_descale, mean);
        float& lost_of_tile = lost[static_cast<std::size_t>(j * width + d)];
        lost_of_tile = core::fma_f32(static_cast<float>(valid), lost_by_fp16, lost_of_tile);
      }
    }
  });
  if (!lost.empty()) {  // [EQ-EMC] V keeps the mean that was subtracted; what is added to O makes up for the stored block means
    std::vector<float> mean_lost(static_cast<std::size_t>(width));
    mean_of_tile_sums(lost, width, s.seqlen_kv, mean_lost.data());
    float* const stored = slab.section<float>(l.v_global_mean) + head_index * width;
    for (int d = 0; d < width; ++d) stored[d] += mean_lost[static_cast<std::size_t>(d)];
  }
  return result;
}

}  // namespace vcattn::preparation
