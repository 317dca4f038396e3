#include "reference/tile_ordered.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "reference/codecs.hpp"
#include "reference/preparation.hpp"
#include "reference/probabilities.hpp"
#include "reference/tensor_core.hpp"

namespace vcattn::reference {

namespace {

using formats::kTileRows;
using formats::Section;
using formats::SequenceExtent;

/// Sections of a slab as numbers.
class SlabReader {
 public:
  SlabReader(formats::PreparedLayout const& layout, Options const& options, std::byte const* slab)
      : layout_(layout), options_(options), slab_(slab), view_(layout, slab) {}

  formats::PreparedLayout const& layout() const { return layout_; }
  Options const& options() const { return options_; }
  formats::SlabView<std::byte const> const& view() const { return view_; }

  template <typename T>
  T get(Section const& section, std::int64_t index) const {
    T value;
    std::memcpy(&value, slab_ + section.offset + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
    return value;
  }

  /// [128, Dp] code values of a tile of Q or K, block scales included.
  Matrix rows_of_tile(Section const& codes, Section const& scale_factors, std::int64_t tile) const {
    Matrix rows(kTileRows, layout_.head_dim_padded);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows.data.size()); ++i) {
      std::int64_t const index = tile * kTileRows * rows.cols + i;
      rows.data[static_cast<std::size_t>(i)] =
          code_value(codes, layout_.qk_bits, options_.qk == QkFormat::int8, index) * block_scale(scale_factors, index);
    }
    return rows;
  }

  /// [128 keys, Dp] code values of a tile of V, back in the order of the keys. [EQ-KEY-SLOT]
  Matrix values_of_tile(std::int64_t tile) const {
    Matrix values(kTileRows, layout_.head_dim_padded);
    for (std::int64_t c = 0; c < values.cols; ++c) {
      for (std::int64_t slot = 0; slot < kTileRows; ++slot) {
        std::int64_t const index = (tile * values.cols + c) * kTileRows + slot;
        values(formats::key_of_slot(static_cast<int>(slot)), c) =
            code_value(layout_.v_codes, layout_.v_bits, false, index) * block_scale(layout_.v_scale_factors, index);
      }
    }
    return values;
  }

 private:
  double code_value(Section const& section, std::int32_t bits, bool integer, std::int64_t index) const {
    switch (bits) {
      case 32:
        return static_cast<double>(get<float>(section, index));
      case 16:
        return bf16().decode(get<std::uint16_t>(section, index));
      case 8:
        return integer ? static_cast<double>(get<std::int8_t>(section, index)) : e4m3().decode(get<std::uint8_t>(section, index));
      default:
        return e2m1().decode(static_cast<std::uint32_t>(get<std::uint8_t>(section, index / 2) >> (index % 2 == 0 ? 0 : 4)) & 0xFu);
    }
  }

  double block_scale(Section const& section, std::int64_t index) const {
    return section.bytes == 0 ? 1.0 : e4m3().decode(get<std::uint8_t>(section, index / kScaleFactorGroup));
  }

  formats::PreparedLayout const& layout_;
  Options const& options_;
  std::byte const* slab_;
  formats::SlabView<std::byte const> view_;
};

/// A score in code units is s * factor.
struct Score {
  float s, factor;
};
using ScoreRow = std::array<Score, kTileRows>;
using ProbabilityRow = std::array<double, kTileRows>;

/// Running state of one query row.
struct RowState {
  float row_max = -std::numeric_limits<float>::infinity();  // M, code units
  float row_const = 0;                                      // T
  bool started = false;                                     // whether T has been set
  double row_sum = 0;                                       // l
  std::vector<double> o;                                    // in units of v_descale [Dp]
};

/// T for a row maximum in the FP32 operations of each form.
float row_constant_f32(Options const& options, bool f16_scores, float row_max) {
  if (f16_scores && has_head_room(options))
    return static_cast<float>(row_constant(options, true, static_cast<double>(row_max)));  // [EQ-TOP-ALIGN]
  return static_cast<float>(row_constant(options, f16_scores, 0.0)) - row_max;             // one subtraction
}

/// Moves T after the row maximum has moved, and rescales what was summed under the old one. [EQ-RESCALE]
void update_row_constant(RowState& row, Options const& options, bool f16_scores) {
  float const reach = f16_scores ? std::ceil(row.row_max) : row.row_max;
  bool const stale = has_head_room(options) && row.started && reach + row.row_const <= 126.0f;  // [EQ-EXPCAST-OFFSET] [EQ-EXPCAST-TWOLINE]
  float const row_const = stale ? row.row_const : row_constant_f32(options, f16_scores, row.row_max);
  if (row.started && row_const != row.row_const) {
    double const alpha = std::exp2((static_cast<double>(row_const) - static_cast<double>(row.row_const)) / 8);
    row.row_sum *= alpha;
    for (double& x : row.o) x *= alpha;
  }
  row.row_const = row_const;
  row.started = true;
}

/// Adds up what was summed under different row constants; that of the largest maximum is the smallest. [EQ-RESCALE]
RowState joined(std::vector<RowState> const& parts) {
  RowState row = parts.front();
  for (RowState const& part : parts) row.row_const = std::min(row.row_const, part.row_const);
  row.row_sum = 0;
  std::fill(row.o.begin(), row.o.end(), 0.0);
  for (RowState const& part : parts) {
    double const factor = std::exp2((static_cast<double>(row.row_const) - static_cast<double>(part.row_const)) / 8);
    row.row_sum += factor * part.row_sum;
    for (std::size_t c = 0; c < row.o.size(); ++c) row.o[c] += factor * part.o[c];
  }
  return row;
}

/// FP32 2^(t / 8), rounded once.
float exp2_of_codes(float t) { return static_cast<float>(std::exp2(static_cast<double>(t) / 8)); }

/// E4M3 byte of a score, in the FP32 operations of each form.
std::uint32_t probability_code_f32(ExpForm form, Score const& score, float row_const) {
  float const t = std::fma(score.s, score.factor, row_const);
  switch (form) {
    case ExpForm::exp:
      return e4m3().encode(static_cast<double>(exp2_of_codes(t - 56.0f)));  // [EQ-EXP]
    case ExpForm::paper:
      return static_cast<std::uint32_t>(std::nearbyint(std::clamp(t, 0.0f, 120.0f)));  // [EQ-EXPCAST-PAPER]
    case ExpForm::offset126:
      return static_cast<std::uint32_t>(std::max(0.0f, std::nearbyint(t)));  // [EQ-EXPCAST-OFFSET]
    case ExpForm::two_line: {                                                // [EQ-EXPCAST-TWOLINE]
      float const upper = std::nearbyint(t);
      float const lower = std::nearbyint(std::fma(upper, 0.300048828125f, 5.0f));
      return static_cast<std::uint32_t>(std::max({upper, lower, 0.0f}));
    }
    case ExpForm::affine: {  // [EQ-EXPCAST-AFFINE]
      constexpr float kMagic = 0x1.8p23f;
      float const base = kMagic + std::fma(row_const, 128.0f, 8192.0f);
      float const x = std::max(std::fma(score.s, score.factor * 128.0f, base), kMagic);
      return e4m3().encode(fp16().decode(std::bit_cast<std::uint32_t>(x) & 0xFFFFu));
    }
  }
  return 0;
}

/// [EQ-P-NVFP4] p: FP32 values of 16 keys; replaced by decoded ones.
void quantise_nvfp4_group(double* p) {
  auto const f32 = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  double const amax16 = *std::max_element(p, p + kScaleFactorGroup);
  double const sf = e4m3().decode(ue4m3_encode(f32(amax16 / 6)));
  for (double* key = p; key < p + kScaleFactorGroup; ++key) *key = sf == 0 ? 0.0 : e2m1().round(f32(*key * f32(1 / sf))) * sf;
}

/// Decoded probabilities of a tile; keys from `visible` on have probability 0.
ProbabilityRow tile_probabilities(ScoreRow const& scores, std::int64_t visible, float row_const, Options const& options) {
  ProbabilityRow p{};
  bool const two_level = options.prob == ProbFormat::nvfp4_two_level;
  for (std::size_t j = 0; j < static_cast<std::size_t>(visible); ++j) {
    if (options.prob == ProbFormat::e4m3) {
      p[j] = e4m3().decode(probability_code_f32(options.exp_form, scores[j], row_const));
      continue;
    }
    float const value = exp2_of_codes(std::fma(scores[j].s, scores[j].factor, row_const));
    p[j] = static_cast<double>(two_level ? value * 2688.0f : value);
    if (options.prob == ProbFormat::bf16) p[j] = bf16().round(p[j]);
  }
  if (options.prob == ProbFormat::nvfp4 || two_level) {
    for (std::size_t j = 0; j < p.size(); j += kScaleFactorGroup) quantise_nvfp4_group(p.data() + j);
  }
  return p;
}

/// One query head of one sequence.
class HeadLoop {
 public:
  HeadLoop(SlabReader const& slab, std::int64_t b, std::int64_t head, ScoreArithmetic arithmetic)
      : slab_(slab),
        l_(slab.layout()),
        options_(slab.options()),
        s_(slab.view().sequences()[static_cast<std::size_t>(b)]),
        b_(b),
        head_(head),
        head_kv_(head / (l_.num_heads / l_.num_heads_kv)),
        multiplier_(slab.get<float>(l_.score_multiplier, b * l_.num_heads + head)),
        f16_scores_(slab.get<formats::ScoreVariant>(l_.score_variant, b * l_.num_heads + head) == formats::ScoreVariant::f16),
        sm90_(arithmetic == ScoreArithmetic::sm90 && options_.qk == QkFormat::e4m3) {}

  /// Rows of query tile I after all of its key tiles.
  std::vector<RowState> run_query_tile(std::int64_t tile, StartsPart const& starts_part) const {
    std::int64_t const rows = std::min(kTileRows, s_.seqlen_q - tile * kTileRows);
    RowState fresh;
    fresh.o.resize(static_cast<std::size_t>(l_.head_dim_padded));
    std::vector<std::vector<RowState>> parts(static_cast<std::size_t>(rows), {fresh});
    std::int64_t const q_tile = slab_.view().tile_q(s_, head_, tile);
    Operand const q = operand(l_.q_codes, l_.q_scale_factors, q_tile);
    for (std::int64_t j = 0; j < s_.tiles_kv; ++j) {
      std::int64_t const k_tile = slab_.view().tile_kv(s_, head_kv_, j);
      Operand const k = operand(l_.k_codes, l_.k_scale_factors, k_tile);
      Matrix const v = slab_.values_of_tile(k_tile);
      std::vector<float> const mean_scores = q_mean_scores(q_tile, k_tile);
      for (std::int64_t i = 0; i < rows; ++i) {
        std::int64_t const visible = visible_keys(l_.causal != 0, s_.seqlen_q, s_.seqlen_kv, tile * kTileRows + i) - j * kTileRows;
        if (visible <= 0) continue;
        ScoreRow const scores = score_row(q, k, i, q_tile, k_tile, mean_scores);
        std::vector<RowState>& row_parts = parts[static_cast<std::size_t>(i)];
        if (j > 0 && starts_part && starts_part(b_, head_, tile * kTileRows + i, j)) row_parts.push_back(fresh);
        add_key_tile(row_parts.back(), scores, std::min(visible, kTileRows), v, k_tile);
      }
    }
    std::vector<RowState> states;
    for (auto const& row_parts : parts) states.push_back(row_parts.size() == 1 ? row_parts.front() : joined(row_parts));
    return states;
  }

  /// [EQ-RESTORE] [EQ-LSE] o: head_dim doubles of row i.
  void finish_row(RowState const& row, std::int64_t i, double* o, double& lse) const {
    auto const correction = static_cast<double>(slab_.get<float>(l_.lse_correction, slab_.view().row_q(s_, head_) + i));
    if (std::isnan(correction)) {
      std::fill_n(o, l_.head_dim, correction);
      lse = correction;
      return;
    }
    if (!row.started) return;
    std::int64_t const first_channel = (b_ * l_.num_heads_kv + head_kv_) * l_.head_dim_padded;
    for (std::int64_t d = 0; d < l_.head_dim; ++d) {
      auto const v_descale = static_cast<double>(slab_.get<float>(l_.v_descale, first_channel + d));
      auto const global_mean = options_.v_mean ? static_cast<double>(slab_.get<float>(l_.v_global_mean, first_channel + d)) : 0.0;
      o[d] = v_descale * row.o[static_cast<std::size_t>(d)] / row.row_sum + global_mean;
    }
    lse = log_sum_exp(options_, row.row_sum, static_cast<double>(row.row_const), correction);
  }

 private:
  /// A tile of Q or K, as the arithmetic of its products needs it.
  struct Operand {
    Matrix values;
    SplitRows split;  // sm90 only
  };

  Operand operand(Section const& codes, Section const& scale_factors, std::int64_t tile) const {
    Operand result{slab_.rows_of_tile(codes, scale_factors, tile), {}};
    if (sm90_) result.split = split_e4m3(result.values);
    return result;
  }

  /// s = q code . k code, in the format of the scores.
  double product(Operand const& q, std::int64_t i, Operand const& k, std::int64_t j) const {
    if (sm90_) return sm90_dot(q.split, i, k.split, j, f16_scores_ ? Accumulator::fp16 : Accumulator::fp32);
    double const exact = dot(q.values, i, k.values, j);
    return f16_scores_ ? fp16().round(exact) : exact;
  }

  /// Code units per unit of s for a row and a key of a tile: f.
  float score_factor(std::int64_t q_tile, std::int64_t i, std::int64_t k_tile, std::int64_t j) const {
    if (has_unit_scores(options_)) return multiplier_;
    std::int64_t q_index = b_ * l_.num_heads + head_;
    std::int64_t k_index = b_ * l_.num_heads_kv + head_kv_;
    if (l_.scales_per_block != 0) {
      q_index = q_tile * l_.q_blocks_per_tile + i * l_.q_blocks_per_tile / kTileRows;
      k_index = k_tile * l_.k_blocks_per_tile + j * l_.k_blocks_per_tile / kTileRows;
    }
    return slab_.get<float>(l_.q_descale, q_index) * multiplier_ * slab_.get<float>(l_.k_descale, k_index);
  }

  /// [EQ-QMEAN] qbar . k_j in code units for the keys of a tile; empty without Q means.
  std::vector<float> q_mean_scores(std::int64_t q_tile, std::int64_t k_tile) const {
    std::vector<float> scores;
    if (!options_.q_mean) return scores;
    std::int64_t const dp = l_.head_dim_padded;
    for (std::int64_t j = 0; j < kTileRows; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < dp; ++c) {
        sum += static_cast<double>(slab_.get<float>(l_.q_mean, q_tile * dp + c)) *
               bf16().decode(slab_.get<std::uint16_t>(l_.k_high, (k_tile * kTileRows + j) * dp + c));
      }
      scores.push_back(static_cast<float>(sum) * multiplier_);
    }
    return scores;
  }

  ScoreRow score_row(Operand const& q, Operand const& k, std::int64_t i, std::int64_t q_tile, std::int64_t k_tile,
                     std::vector<float> const& mean_scores) const {
    ScoreRow scores{};
    for (std::int64_t j = 0; j < kTileRows; ++j) {
      Score& score = scores[static_cast<std::size_t>(j)];
      score.s = static_cast<float>(product(q, i, k, j));
      score.factor = score_factor(q_tile, i, k_tile, j);
      if (options_.q_mean) score = {std::fma(score.s, score.factor, mean_scores[static_cast<std::size_t>(j)]), 1.0f};
    }
    return scores;
  }

  void add_key_tile(RowState& row, ScoreRow const& scores, std::int64_t visible, Matrix const& v, std::int64_t k_tile) const {
    for (std::size_t j = 0; j < static_cast<std::size_t>(visible); ++j) row.row_max = std::max(row.row_max, scores[j].s * scores[j].factor);
    update_row_constant(row, options_, f16_scores_);
    ProbabilityRow const p = tile_probabilities(scores, visible, row.row_const, options_);
    for (std::int64_t j = 0; j < kTileRows; ++j) {
      double const probability = p[static_cast<std::size_t>(j)];
      if (probability == 0) continue;
      row.row_sum += probability;
      for (std::int64_t c = 0; c < v.cols; ++c) row.o[static_cast<std::size_t>(c)] += probability * v(j, c);
    }
    add_means(row, p, k_tile);
  }

  /// O += r_ij mu_j for the V blocks of a tile. [EQ-ROWSUM] [EQ-RESTORE]
  void add_means(RowState& row, ProbabilityRow const& p, std::int64_t k_tile) const {
    for (std::int64_t block = 0; block < l_.v_blocks_per_tile; ++block) {
      auto const first = p.begin() + block * kTileRows / l_.v_blocks_per_tile;
      double block_sum = 0;
      for (auto probability = first; probability < first + kTileRows / l_.v_blocks_per_tile; ++probability) block_sum += *probability;
      if (block_sum == 0) continue;
      std::int64_t const first_channel = (k_tile * l_.v_blocks_per_tile + block) * l_.head_dim_padded;
      for (std::int64_t c = 0; c < l_.head_dim_padded; ++c) {
        row.o[static_cast<std::size_t>(c)] += block_sum * fp16().decode(slab_.get<std::uint16_t>(l_.v_mean, first_channel + c));
      }
    }
  }

  SlabReader const& slab_;
  formats::PreparedLayout const& l_;
  Options const& options_;
  SequenceExtent const& s_;
  std::int64_t b_, head_, head_kv_;
  float multiplier_;
  bool f16_scores_, sm90_;
};

}  // namespace

AttentionResult tile_ordered_attention(formats::PreparedLayout const& layout, Options const& options, std::byte const* slab, bool varlen,
                                       ScoreArithmetic arithmetic, StartsPart const& starts_part) {
  SlabReader const reader(layout, options, slab);
  AttentionResult result;
  result.o.assign(static_cast<std::size_t>(layout.rows_q * layout.num_heads * layout.head_dim), 0.0);
  result.lse.assign(static_cast<std::size_t>(layout.rows_q * layout.num_heads), -std::numeric_limits<double>::infinity());
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    SequenceExtent const& s = reader.view().sequences()[static_cast<std::size_t>(b)];
    for (std::int64_t head = 0; head < layout.num_heads; ++head) {
      HeadLoop const loop(reader, b, head, arithmetic);
      std::int64_t const first_lse = varlen ? head * layout.rows_q + s.row_begin_q : reader.view().row_q(s, head);
      for (std::int64_t tile = 0; tile < s.tiles_q; ++tile) {
        std::vector<RowState> const rows = loop.run_query_tile(tile, starts_part);
        for (std::size_t r = 0; r < rows.size(); ++r) {
          std::int64_t const i = tile * kTileRows + static_cast<std::int64_t>(r);
          std::int64_t const o_index = ((s.row_begin_q + i) * layout.num_heads + head) * layout.head_dim;
          loop.finish_row(rows[r], i, result.o.data() + o_index, result.lse[static_cast<std::size_t>(first_lse + i)]);
        }
      }
    }
  }
  return result;
}

}  // namespace vcattn::reference
