#include "prepare/query_key.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "core/expcast.hpp"
#include "core/unit_scaling.hpp"
#include "device/cpu/gemm.hpp"
#include "device/cpu/parallel.hpp"
#include "formats/codes.hpp"
#include "prepare/shaping.hpp"
#include "prepare/tile.hpp"

namespace vcattn::preparation {

namespace {

using formats::CodeFormat;
using formats::kTileRows;
using formats::PreparedLayout;
using formats::SequenceExtent;

/// Codes of one operand (Q of one head, or K) as it is written tile by tile.
struct Operand {
  RowSource source;
  std::int64_t rows;
  std::int64_t first_tile;          // tile index in the slab
  float const* subtract = nullptr;  // K mean
  std::int32_t const* permutation = nullptr;
  std::byte* codes;
  std::uint8_t* scale_factors;  // nullptr: not NVFP4
  float* block_descale;         // [tiles][blocks_per_tile] of this operand; nullptr: one descale per head
  int blocks_per_tile;
  float* tile_means = nullptr;    // q_mean: [tiles][width], subtracted after Hadamard
  std::uint16_t* high = nullptr;  // k_high: bf16 [tiles][128][width]
};

std::int64_t tiles_of(std::int64_t rows) { return formats::ceil_div(rows, kTileRows); }

class QkPass {
 public:
  explicit QkPass(Options const& options) : options_(options), format_(formats::code_format(options.qk)) {}

  CodeFormat format() const { return format_; }
  bool per_block() const { return options_.qk_scaling == QkScaling::block && (format_ == CodeFormat::e4m3 || format_ == CodeFormat::int8); }

  /// Reads tile j and applies what comes before quantisation. Returns whether all rows were finite.
  bool load(Operand const& x, std::int64_t j, Tile& tile, float* tile_mean) const {
    bool const finite = tile.load(x.source, j * kTileRows, rows_of_tile(x.rows, j), x.permutation);
    if (x.subtract != nullptr) tile.subtract(x.subtract);
    if (options_.hadamard) tile.hadamard();
    if (tile_mean != nullptr) {  // [EQ-QMEAN]
      tile.column_sums(0, tile.count(), tile_mean);
      for (int d = 0; d < tile.width(); ++d) tile_mean[d] /= static_cast<float>(tile.count());
      tile.subtract(tile_mean);
    }
    return finite;
  }

  /// Largest magnitude of the operand after the transforms.
  float amax(Operand const& x, std::atomic<bool>* finite) const {
    std::vector<float> per_tile(static_cast<std::size_t>(tiles_of(x.rows)), 0.0f);
    device::cpu::parallel_for(options_.num_threads, tiles_of(x.rows), [&](std::int64_t j) {
      Tile tile(x.source.head_dim_padded());
      if (!load(x, j, tile, mean_of(x, j)) && finite != nullptr) *finite = false;
      per_tile[static_cast<std::size_t>(j)] = tile.amax(0, tile.count());
    });
    return per_tile.empty() ? 0.0f : *std::max_element(per_tile.begin(), per_tile.end());
  }

  /// Sum of z8 z8^T over the rows of some tiles, integers, for z8 = rne(z * 127 / amax). [EQ-SHAPED]
  std::vector<double> integer_moment(Operand const& x, float amax) const {
    constexpr std::int64_t kChunks = 16;  // integer sums are exact, so how they are cut does not matter
    int const width = x.source.head_dim_padded();
    auto const size = static_cast<std::size_t>(width) * static_cast<std::size_t>(width);
    std::vector<std::vector<double>> partial(kChunks, std::vector<double>(size, 0.0));
    float const inverse = formats::kInt8Max / amax;
    auto const& gemm = device::cpu::gemm_kernels(device::cpu::best_isa());
    device::cpu::parallel_for(options_.num_threads, kChunks, [&](std::int64_t chunk) {
      Tile tile(width);
      std::vector<float> mean(static_cast<std::size_t>(width));
      std::vector<float> transposed(static_cast<std::size_t>(width * kTileRows));
      std::vector<float> product(size);
      auto& sums = partial[static_cast<std::size_t>(chunk)];
      std::int64_t const step = moment_tile_step(tiles_of(x.rows));
      for (std::int64_t j = chunk * step; j < tiles_of(x.rows); j += kChunks * step) {
        load(x, j, tile, x.tile_means == nullptr ? nullptr : mean.data());
        for (int d = 0; d < width; ++d) {
          for (int r = 0; r < kTileRows; ++r)
            transposed[static_cast<std::size_t>(d * kTileRows + r)] = core::rint_small(tile.row(r)[d] * inverse);
        }
        gemm.nt_f32(width, width, kTileRows, transposed.data(), kTileRows, transposed.data(), kTileRows, product.data(), width);
        for (std::size_t i = 0; i < size; ++i) sums[i] += static_cast<double>(product[i]);
      }
    });
    for (std::int64_t c = 1; c < kChunks; ++c) {
      for (std::size_t i = 0; i < size; ++i) partial[0][i] += partial[static_cast<std::size_t>(c)][i];
    }
    return std::move(partial[0]);
  }

  /// Writes codes (and block descales); returns the largest row norm in real units. `descale` is used where it is one per head, `shaper`
  /// where rounding is shaped (its feedback not null).
  float quantise(Operand const& x, float descale, RowShaper const& shaper, std::atomic<bool>* finite) const {
    std::vector<float> norms(static_cast<std::size_t>(tiles_of(x.rows)), 0.0f);
    device::cpu::parallel_for(options_.num_threads, tiles_of(x.rows), [&](std::int64_t j) {
      Tile tile(x.source.head_dim_padded());
      if (!load(x, j, tile, mean_of(x, j)) && finite != nullptr) *finite = false;
      if (x.high != nullptr) store_high(x, j, tile);
      norms[static_cast<std::size_t>(j)] = quantise_tile(x, j, tile, descale, shaper);
    });
    return norms.empty() ? 0.0f : *std::max_element(norms.begin(), norms.end());
  }

 private:
  static float* mean_of(Operand const& x, std::int64_t j) {
    return x.tile_means == nullptr ? nullptr : x.tile_means + j * x.source.head_dim_padded();
  }

  static void store_high(Operand const& x, std::int64_t j, Tile const& tile) {
    std::int64_t const size = kTileRows * tile.width();
    for (std::int64_t i = 0; i < size; ++i) x.high[j * size + i] = core::bf16_encode(tile.row(0)[i]);
  }

  float quantise_tile(Operand const& x, std::int64_t j, Tile const& tile, float head_descale, RowShaper const& shaper) const {
    int const width = tile.width();
    int const block = static_cast<int>(kTileRows) / x.blocks_per_tile;
    std::int64_t const row_bytes = static_cast<std::int64_t>(width) * formats::code_bits(format_) / 8;
    std::int64_t const row_groups = width / core::kNvfp4Group;
    std::vector<float> decoded(static_cast<std::size_t>(width));
    std::vector<float> shaped(static_cast<std::size_t>(width));
    ShapeRow const shape_row = shape_row_kernel(device::cpu::best_isa());
    float largest_norm = 0.0f;
    for (int b = 0; b < x.blocks_per_tile; ++b) {
      float const descale = per_block() ? formats::descale_of(format_, tile.amax(b * block, block)) : head_descale;  // [EQ-AMAX]
      if (per_block()) x.block_descale[j * x.blocks_per_tile + b] = descale;
      float const inverse = 1.0f / descale;
      for (int r = b * block; r < (b + 1) * block; ++r) {
        std::int64_t const index = (x.first_tile + j) * kTileRows + r;
        std::byte* const codes = x.codes + index * row_bytes;
        std::uint8_t* const factors = x.scale_factors == nullptr ? nullptr : x.scale_factors + index * row_groups;
        if (shaper.feedback != nullptr) {
          std::transform(tile.row(r), tile.row(r) + width, shaped.data(), [&](float v) { return v * inverse; });
          if (factors != nullptr) formats::nvfp4_scale_factors(shaped.data(), width, 1.0f, factors);
          shape_row(shaper, factors, shaped.data());
          formats::encode_codes(format_, shaped.data(), width, 1.0f, factors, codes);
        } else {
          formats::encode_row(format_, tile.row(r), width, inverse, codes, factors);
        }
        formats::decode_row(format_, codes, factors, width, decoded.data());
        float const norm = std::sqrt(core::lane_dot(decoded.data(), decoded.data(), width)) * core::abs_f32(descale);
        largest_norm = core::max_f32(largest_norm, norm);
      }
    }
    return largest_norm;
  }

  Options const& options_;
  CodeFormat format_;
};

}  // namespace

void prepare_query_key(QkHead const& head, bool values_finite) {
  Problem const& problem = *head.problem;
  Options const& options = *head.options;
  auto const& slab = head.slab;
  PreparedLayout const& l = slab.layout();
  SequenceExtent const& s = slab.sequences()[static_cast<std::size_t>(head.sequence)];
  int const width = static_cast<int>(l.head_dim_padded);
  std::int64_t const group = l.num_heads / l.num_heads_kv;
  bool const varlen = !problem.cu_seqlens_q.empty();
  QkPass const pass(options);
  bool const unit = pass.format() == CodeFormat::e4m3 && options.qk_scaling == QkScaling::unit;
  float const m = l.softmax_scale * core::kCodesPerNat;
  std::atomic<bool> keys_finite{values_finite};

  // K: mean over valid rows in the caller's order [EQ-KMEAN], then the operand in sorted order.
  RowSource const key_source(problem.k, varlen, head.sequence, s.row_begin_kv, head.head_kv, width, problem.rope);
  std::vector<float> k_mean(static_cast<std::size_t>(width), 0.0f);
  if (options.k_mean) {
    bool finite = true;
    k_mean = column_means(key_source, s.seqlen_kv, options.num_threads, &finite);
    if (!finite) keys_finite = false;
  }
  std::int64_t const first_tile_kv = slab.tile_kv(s, head.head_kv, 0);
  auto* const k_high = slab.section<std::uint16_t>(l.k_high);
  float* const k_descale = slab.section<float>(l.k_descale);
  Operand key{.source = key_source,
              .rows = s.seqlen_kv,
              .first_tile = first_tile_kv,
              .subtract = options.k_mean ? k_mean.data() : nullptr,
              .permutation = slab.section<std::int32_t>(l.permutation) + slab.row_kv(s, head.head_kv),
              .codes = slab.section<std::byte>(l.k_codes),
              .scale_factors = slab.section<std::uint8_t>(l.k_scale_factors),
              .block_descale = pass.per_block() ? k_descale + first_tile_kv * l.k_blocks_per_tile : nullptr,
              .blocks_per_tile = l.k_blocks_per_tile,
              .high = k_high == nullptr ? nullptr : k_high + first_tile_kv * kTileRows * width};

  auto const query_operand = [&](std::int64_t h) {
    std::int64_t const first_tile = slab.tile_q(s, h, 0);
    return Operand{.source = RowSource(problem.q, varlen, head.sequence, s.row_begin_q, h, width, problem.rope),
                   .rows = s.seqlen_q,
                   .first_tile = first_tile,
                   .codes = slab.section<std::byte>(l.q_codes),
                   .scale_factors = slab.section<std::uint8_t>(l.q_scale_factors),
                   .block_descale = pass.per_block() ? slab.section<float>(l.q_descale) + first_tile * l.q_blocks_per_tile : nullptr,
                   .blocks_per_tile = l.q_blocks_per_tile,
                   .tile_means = options.q_mean ? slab.section<float>(l.q_mean) + first_tile * width : nullptr};
  };

  // Descales that cover a whole head need the largest magnitude first.
  bool const shape_k = options.qk_rounding != QkRounding::nearest;
  bool const shape_q = options.qk_rounding == QkRounding::shaped;
  bool const per_head = formats::code_max(pass.format()) != 0.0f && (!pass.per_block() || shape_k);
  std::vector<float> amax_q(static_cast<std::size_t>(group), 0.0f);
  float amax_k = 0.0f;
  if (per_head) {
    amax_k = pass.amax(key, &keys_finite);
    for (std::int64_t g = 0; g < group; ++g)
      amax_q[static_cast<std::size_t>(g)] = pass.amax(query_operand(head.head_kv * group + g), nullptr);
  }

  double const codes_per_product = static_cast<double>(m);
  int const query_code_max = formats::unit_query_code_max(width);
  float key_descale = formats::descale_of(pass.format(), amax_k);
  if (unit) {
    double const largest_q = core::unit_amax(*std::max_element(amax_q.begin(), amax_q.end()));
    key_descale = core::unit_key_descale(largest_q, core::unit_amax(amax_k), codes_per_product, query_code_max, formats::kUnitKeyCodeMax);
  }
  RowShaper key_shaper{
      .format = pass.format(), .width = width, .limit = unit ? formats::kUnitKeyCodeMax : formats::code_max(pass.format())};
  RowShaper query_shaper = key_shaper;
  if (unit) query_shaper.limit = static_cast<float>(query_code_max);
  Feedback key_feedback;
  Feedback query_feedback;
  // [EQ-SHAPED] each operand is shaped by the second moment of the other, both before rounding.
  auto const moment_of = [&](Operand const& x, float amax, Moment& sum) {
    double const step = static_cast<double>(amax) / static_cast<double>(formats::kInt8Max);
    if (amax >= core::kAmaxFloor) sum.add(step * step, pass.integer_moment(x, amax));
  };
  if (shape_k) {
    Moment of_queries(width);
    for (std::int64_t g = 0; g < group; ++g)
      moment_of(query_operand(head.head_kv * group + g), amax_q[static_cast<std::size_t>(g)], of_queries);
    key_feedback = feedback_of(of_queries);
    key_shaper.feedback = &key_feedback;
  }
  if (shape_q) {
    Moment of_keys(width);
    moment_of(key, amax_k, of_keys);
    query_feedback = feedback_of(of_keys);
    query_shaper.feedback = &query_feedback;
  }
  float const key_norm = pass.quantise(key, key_descale, key_shaper, &keys_finite);
  if (l.scales_per_block == 0) k_descale[head.sequence * l.num_heads_kv + head.head_kv] = key_descale;

  for (std::int64_t g = 0; g < group; ++g) {
    std::int64_t const h = head.head_kv * group + g;
    std::int64_t const index = head.sequence * l.num_heads + h;
    Operand const query = query_operand(h);
    float query_descale = formats::descale_of(pass.format(), amax_q[static_cast<std::size_t>(g)]);
    float multiplier = m;
    if (unit) {
      core::UnitQuery const u = core::unit_query(core::unit_amax(amax_q[static_cast<std::size_t>(g)]), codes_per_product,
                                                 static_cast<double>(key_descale), query_code_max);
      query_descale = u.descale;
      multiplier = u.multiplier;
    }
    float const query_norm = pass.quantise(query, query_descale, query_shaper, nullptr);
    if (l.scales_per_block == 0) slab.section<float>(l.q_descale)[index] = query_descale;

    float bound = core::abs_f32(m) * query_norm * key_norm;  // [EQ-BOUND]
    if (query.tile_means != nullptr) {
      float mean_norm = 0.0f;
      for (std::int64_t j = 0; j < s.tiles_q; ++j) {
        float const* const row = query.tile_means + j * width;
        mean_norm = core::max_f32(mean_norm, std::sqrt(core::lane_dot(row, row, width)));
      }
      bound += core::abs_f32(m) * mean_norm * key_norm;
    }
    slab.section<float>(l.score_bound)[index] = bound;
    slab.section<float>(l.score_multiplier)[index] = multiplier;
    bool const f16 = unit && formats::allows_f16_scores(options.exp_form) && bound <= formats::fp16_score_bound(options.scores);
    slab.section<formats::ScoreVariant>(l.score_variant)[index] = f16 ? formats::ScoreVariant::f16 : formats::ScoreVariant::f32;

    float* const correction = slab.section<float>(l.lse_correction) + slab.row_q(s, h);
    device::cpu::parallel_for(options.num_threads, s.tiles_q, [&](std::int64_t j) {
      std::vector<float> row(static_cast<std::size_t>(width));
      for (std::int64_t i = j * kTileRows; i < j * kTileRows + rows_of_tile(s.seqlen_q, j); ++i) {
        bool const finite = query.source.load(i, row.data()) && keys_finite;
        correction[i] =
            finite ? l.softmax_scale * core::lane_dot(row.data(), k_mean.data(), width) : std::numeric_limits<float>::quiet_NaN();
      }
    });
  }
}

}  // namespace vcattn::preparation
