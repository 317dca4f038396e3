#include "reference/slab.hpp"

#include <cmath>
#include <cstring>
#include <span>

#include "reference/codecs.hpp"
#include "reference/preparation.hpp"

namespace vcattn::reference {

namespace {

using formats::kTileRows;
using formats::Section;
using formats::SequenceExtent;

class Packer {
 public:
  Packer(formats::LayoutPlan const& plan) : layout_(plan.layout), bytes_(plan.layout.total_bytes), view_(plan.layout, bytes_.data()) {
    for (std::size_t b = 0; b < plan.sequences.size(); ++b) put(layout_.sequences, static_cast<std::int64_t>(b), plan.sequences[b]);
  }

  void pack_query(std::int64_t b, std::int64_t head, QueryHead const& q) {
    SequenceExtent const& s = extent(b);
    std::int64_t const first_tile = view_.tile_q(s, head, 0);
    pack_rows(layout_.q_codes, layout_.q_scale_factors, first_tile, q.codes);
    pack_descales(layout_.q_descale, b * layout_.num_heads + head, first_tile, s.tiles_q, layout_.q_blocks_per_tile, q.descale);
    for (std::size_t i = 0; i < q.tile_mean.data.size(); ++i) {
      put(layout_.q_mean, first_tile * layout_.head_dim_padded + static_cast<std::int64_t>(i), static_cast<float>(q.tile_mean.data[i]));
    }
    std::int64_t const index = b * layout_.num_heads + head;
    put(layout_.score_multiplier, index, q.score_multiplier);
    put(layout_.score_bound, index, static_cast<float>(q.score_bound));
    put(layout_.score_variant, index, q.f16_scores ? formats::ScoreVariant::f16 : formats::ScoreVariant::f32);
    for (std::size_t i = 0; i < q.lse_correction.size(); ++i) {
      put(layout_.lse_correction, view_.row_q(s, head) + static_cast<std::int64_t>(i), static_cast<float>(q.lse_correction[i]));
    }
  }

  void pack_key_value(std::int64_t b, std::int64_t head_kv, KeyValueHead const& kv) {
    SequenceExtent const& s = extent(b);
    std::int64_t const first_tile = view_.tile_kv(s, head_kv, 0);
    std::int64_t const dp = layout_.head_dim_padded;
    pack_rows(layout_.k_codes, layout_.k_scale_factors, first_tile, kv.k);
    pack_descales(layout_.k_descale, b * layout_.num_heads_kv + head_kv, first_tile, s.tiles_kv, layout_.k_blocks_per_tile, kv.k_descale);
    for (std::size_t i = 0; i < kv.k_high.data.size(); ++i) {
      put(layout_.k_high, first_tile * kTileRows * dp + static_cast<std::int64_t>(i),
          static_cast<std::uint16_t>(bf16().encode(kv.k_high.data[i])));
    }
    pack_values(first_tile, kv.v);
    std::int64_t const first_channel = (b * layout_.num_heads_kv + head_kv) * dp;
    for (std::int64_t c = 0; c < dp; ++c) {
      put(layout_.v_descale, first_channel + c, static_cast<float>(kv.v_descale.of_row(c)));
      if (layout_.v_global_mean.bytes != 0) put(layout_.v_global_mean, first_channel + c, kv.v_global_mean[static_cast<std::size_t>(c)]);
    }
    for (std::size_t i = 0; i < kv.v_mean.data.size(); ++i) {
      std::int64_t const index = first_tile * layout_.v_blocks_per_tile * dp + static_cast<std::int64_t>(i);
      double const mean = kv.v_mean.data[i];
      put(layout_.v_mean, index, static_cast<std::uint16_t>(std::isfinite(mean) ? fp16().encode(mean) : 0));
    }
  }

  /// The section has the order of Problem::permutation; empty: as the caller stores the keys.
  void pack_permutation(std::span<std::int32_t const> permutation) {
    for (std::size_t i = 0; i < permutation.size(); ++i) put(layout_.permutation, static_cast<std::int64_t>(i), permutation[i]);
    if (!permutation.empty()) return;
    for (SequenceExtent const& s : view_.sequences()) {
      for (std::int64_t row = 0; row < layout_.num_heads_kv * s.rows_kv; ++row) {
        put(layout_.permutation, view_.row_kv(s, 0) + row, static_cast<std::int32_t>(row % s.rows_kv));
      }
    }
  }

  PackedSlab take() { return {layout_, std::move(bytes_)}; }

 private:
  SequenceExtent const& extent(std::int64_t b) const { return view_.sequences()[static_cast<std::size_t>(b)]; }

  template <typename T>
  void put(Section const& section, std::int64_t index, T const& value) {
    std::memcpy(bytes_.data() + section.offset + static_cast<std::size_t>(index) * sizeof(T), &value, sizeof(T));
  }

  /// Code `index` of a section of `bits`-wide codes; of two 4-bit codes in a byte the first is in the low half.
  void put_code(Section const& section, std::int32_t bits, std::int64_t index, std::uint32_t code) {
    switch (bits) {
      case 32:
        put(section, index, code);
        break;
      case 16:
        put(section, index, static_cast<std::uint16_t>(code));
        break;
      case 8:
        put(section, index, static_cast<std::uint8_t>(code));
        break;
      default:
        bytes_[section.offset + static_cast<std::size_t>(index / 2)] |= static_cast<std::byte>(index % 2 == 0 ? code : code << 4);
    }
  }

  /// Q or K: [tile][128][Dp] is the matrix itself, row after row.
  void pack_rows(Section const& codes, Section const& scale_factors, std::int64_t first_tile, Coded const& coded) {
    std::int64_t const first_row = first_tile * kTileRows;
    for (std::size_t i = 0; i < coded.codes.size(); ++i) {
      put_code(codes, layout_.qk_bits, first_row * coded.cols + static_cast<std::int64_t>(i), coded.codes[i]);
    }
    for (std::size_t i = 0; i < coded.scale_factors.size(); ++i) {
      put(scale_factors, first_row * coded.cols / kScaleFactorGroup + static_cast<std::int64_t>(i), coded.scale_factors[i]);
    }
  }

  /// V: [tile][Dp][128 slots] from [Dp, keys]. [EQ-KEY-SLOT]
  void pack_values(std::int64_t first_tile, Coded const& v) {
    constexpr std::int64_t kGroups = kTileRows / kScaleFactorGroup;
    for (std::int64_t c = 0; c < v.rows; ++c) {
      for (std::int64_t key = 0; key < v.cols; ++key) {
        std::int64_t const tile_channel = (first_tile + key / kTileRows) * v.rows + c;
        std::int64_t const slot = formats::slot_of_key(static_cast<int>(key % kTileRows));
        put_code(layout_.v_codes, layout_.v_bits, tile_channel * kTileRows + slot, v.codes[static_cast<std::size_t>(c * v.cols + key)]);
        if (v.scale_factors.empty() || key % kScaleFactorGroup != 0) continue;
        std::int64_t const group = key / kScaleFactorGroup;
        put(layout_.v_scale_factors, tile_channel * kGroups + group % kGroups,
            v.scale_factors[static_cast<std::size_t>(c * v.cols / kScaleFactorGroup + group)]);
      }
    }
  }

  /// One per head, or per block of every tile; blocks without a valid row get 1.
  void pack_descales(Section const& section, std::int64_t head_index, std::int64_t first_tile, std::int64_t tiles,
                     std::int64_t blocks_per_tile, Descales const& descales) {
    if (layout_.scales_per_block == 0) return put(section, head_index, descales.values.front());
    for (std::int64_t block = 0; block < tiles * blocks_per_tile; ++block) {
      auto const i = static_cast<std::size_t>(block);
      put(section, first_tile * blocks_per_tile + block, i < descales.values.size() ? descales.values[i] : 1.0f);
    }
  }

  formats::PreparedLayout layout_;
  std::vector<std::byte> bytes_;
  formats::SlabView<std::byte> view_;
};

}  // namespace

PackedSlab pack_slab(Problem const& problem, Options const& options) {
  formats::LayoutPlan const plan = formats::plan_layout(problem, options);
  Packer packer(plan);
  packer.pack_permutation(problem.permutation);
  std::vector<PreparedSequence> const sequences = prepare_reference(problem, options);
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    auto const index = static_cast<std::int64_t>(b);
    for (std::size_t h = 0; h < sequences[b].q.size(); ++h) packer.pack_query(index, static_cast<std::int64_t>(h), sequences[b].q[h]);
    for (std::size_t h = 0; h < sequences[b].kv.size(); ++h) packer.pack_key_value(index, static_cast<std::int64_t>(h), sequences[b].kv[h]);
  }
  return packer.take();
}

}  // namespace vcattn::reference
