#pragma once

// The prepared layout: what every attention back end consumes. docs/formats.md has the byte pictures; this header is the definition.
//
// One slab of memory, cut into sections. Rows of a sequence are cut into tiles of 128, the last one zero-padded, and every (batch, head)
// stores its tiles one after another, batch by batch:
//     tile(b, h, j) = num_heads * tile_begin[b] + h * tiles[b] + j
// With equal lengths that is a plain [B, H, S_padded, ...] array; with varlen nothing is wasted.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vcattn/attention.hpp"

namespace vcattn::formats {

inline constexpr std::uint32_t kPreparedLayoutVersion = 1;
inline constexpr std::int64_t kTileRows = 128;
inline constexpr std::size_t kSectionAlignment = 256;
/// bytes, up to where the next section or piece of a workspace may begin.
constexpr std::size_t aligned_size(std::size_t bytes) { return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment; }

// [EQ-UNIT] bounds of the E4M3 codes with QkScaling::unit: 16 * 31 * 128 < 65,504, so that an FP16 accumulator cannot overflow.
inline constexpr int kUnitKeyCodeMax = 30;    // the largest E4M3 value <= 31
inline constexpr int kUnitQueryCodeMax = 16;  // halved at head_dim 256

constexpr int unit_query_code_max(std::int64_t head_dim_padded) {
  return head_dim_padded > 128 ? kUnitQueryCodeMax / 2 : kUnitQueryCodeMax;
}

/// Score bound, in code units, up to which FP16 scores are used: an FP16 number below 1,024 still resolves half a code.
inline constexpr float kFp16ScoreBound = 1024.0f;

/// The same where FP16 scores are asked for: row constants up to 2,048 are exact in packed halves, and a code cannot pass 126.
inline constexpr float kFp16ScoreLimit = 1900.0f;

/// Bound up to which a choice of scores means FP16.
constexpr float fp16_score_bound(ScoreFormat scores) {
  return scores == ScoreFormat::f32 ? -1.0f : scores == ScoreFormat::f16 ? kFp16ScoreLimit : kFp16ScoreBound;
}

/// FP16 scores need a row constant that packed halves hold exactly, or go to FP32 for an exponential.
constexpr bool allows_f16_scores(ExpForm form) { return form == ExpForm::two_line || form == ExpForm::offset126 || form == ExpForm::exp; }

enum class ScoreVariant : std::uint8_t { f32 = 0, f16 = 1 };

/// Stored slot of a key inside its 128-row tile. [EQ-KEY-SLOT] Slot 4t + j of a group of 16 holds key {2t, 2t+1, 8+2t, 9+2t}[j]:
/// the order in which accumulator registers of Q K^T become the A operand of P V.
constexpr int key_of_slot(int slot) {
  int const t = (slot & 15) / 4;
  int const j = slot & 3;
  return (slot & ~15) + 2 * t + (j & 1) + (j >= 2 ? 8 : 0);
}
constexpr int slot_of_key(int key) {
  int const k = key & 15;
  return (key & ~15) + 4 * ((k & 7) / 2) + (k & 1) + (k >= 8 ? 2 : 0);
}

/// Rows of one sequence (batch entry, or varlen segment). POD, stored in the slab.
struct SequenceExtent {
  std::int64_t seqlen_q = 0;      // query rows
  std::int64_t seqlen_kv = 0;     // valid keys
  std::int64_t rows_kv = 0;       // key rows of the caller's tensor, padding included
  std::int64_t row_begin_q = 0;   // sum of seqlen_q before
  std::int64_t row_begin_kv = 0;  // sum of rows_kv before
  std::int64_t tiles_q = 0;
  std::int64_t tiles_kv = 0;       // over valid keys
  std::int64_t tile_begin_q = 0;   // sum of tiles_q before
  std::int64_t tile_begin_kv = 0;  // sum of tiles_kv before
};

/// Offset and size in bytes inside the slab; size 0: absent.
struct Section {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// POD. Shapes per section: T = tiles of all (batch, head), Dp = head_dim padded to a power of two >= 32.
struct PreparedLayout {
  std::uint32_t version = kPreparedLayoutVersion;
  std::uint32_t flags = 0;
  std::int64_t batch = 0, num_heads = 0, num_heads_kv = 0, head_dim = 0, head_dim_padded = 0;
  std::int64_t tiles_q = 0, tiles_kv = 0;  // per head, summed over sequences
  std::int64_t rows_q = 0, rows_kv = 0;    // per head, summed over sequences
  std::int32_t qk_bits = 0, v_bits = 0;    // per code: 32, 16, 8, 4
  std::int32_t q_blocks_per_tile = 1, k_blocks_per_tile = 1, v_blocks_per_tile = 1;
  std::int32_t scales_per_block = 0;  // 1: q_descale, k_descale per block of a tile; 0: per (batch, head)
  float softmax_scale = 0.0f;
  std::int32_t causal = 0;
  std::uint64_t total_bytes = 0;

  Section sequences;         // SequenceExtent [B]
  Section q_codes;           // [Tq][128][Dp] qk_bits
  Section q_scale_factors;   // NVFP4: UE4M3 [Tq][128][Dp / 16]
  Section q_descale;         // f32 [Tq][q_blocks_per_tile] or [B][H]
  Section q_mean;            // q_mean only: f32 [Tq][Dp]
  Section k_codes;           // [Tk][128][Dp] qk_bits
  Section k_scale_factors;   // NVFP4: UE4M3 [Tk][128][Dp / 16]
  Section k_descale;         // f32 [Tk][k_blocks_per_tile] or [B][Hkv]
  Section k_high;            // q_mean only: smoothed K as bf16 [Tk][128][Dp]
  Section score_multiplier;  // f32 [B][H]: code units per score unit; n with QkScaling::unit
  Section score_bound;       // f32 [B][H]: upper bound of |score| in code units
  Section score_variant;     // ScoreVariant [B][H]
  Section v_codes;           // [Tk][Dp][128 slots] v_bits, slots in the order of key_of_slot()
  Section v_scale_factors;   // NVFP4: UE4M3 [Tk][Dp][8], one per 16 slots
  Section v_descale;         // f32 [B][Hkv][Dp]
  Section v_mean;            // V-Smooth: fp16 [Tk][v_blocks_per_tile][Dp], divided by v_descale
  Section v_global_mean;     // V-Smooth: f32 [B][Hkv][Dp]
  Section lse_correction;    // f32 [B][H][Sq]: softmax_scale * q . k_mean (0 without); NaN marks a query row that held a non-finite value
  Section permutation;       // i32 [B][Hkv][rows_kv]
};

/// Layout of a problem and its sequences. Both must have been validated.
struct LayoutPlan {
  PreparedLayout layout;
  std::vector<SequenceExtent> sequences;
};
LayoutPlan plan_layout(Problem const& problem, Options const& options);

/// Throws invalid_argument unless the caller's memory is 256-byte aligned and at least `bytes` long. `what` names it, `ask` says where the
/// size comes from.
void check_memory(std::span<std::byte const> given, std::size_t bytes, char const* what, char const* ask);

/// Smallest power of two >= head_dim, at least 32.
std::int64_t padded_head_dim(std::int64_t head_dim);

/// Softmax scale of the problem: the caller's, or 1 / sqrt(head_dim).
float softmax_scale_of(Problem const& problem);

/// Order that `automatic` stands for.
GroupOrder resolve_order(Options const& options, bool causal);

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Typed access to a slab laid out by `layout`. Copyable; `Byte` is std::byte or std::byte const.
template <typename Byte>
class SlabView {
 public:
  SlabView(PreparedLayout const& layout, Byte* slab) : layout_(&layout), slab_(slab) {}

  PreparedLayout const& layout() const { return *layout_; }

  template <typename T>
  auto section(Section const& s) const {
    using Element = std::conditional_t<std::is_const_v<Byte>, T const, T>;
    return s.bytes == 0 ? nullptr : reinterpret_cast<Element*>(slab_ + s.offset);
  }
  std::span<SequenceExtent const> sequences() const {
    return {section<SequenceExtent>(layout_->sequences), static_cast<std::size_t>(layout_->batch)};
  }

  /// Index of tile j of (sequence, head).
  std::int64_t tile_q(SequenceExtent const& s, std::int64_t head, std::int64_t j) const {
    return layout_->num_heads * s.tile_begin_q + head * s.tiles_q + j;
  }
  std::int64_t tile_kv(SequenceExtent const& s, std::int64_t head_kv, std::int64_t j) const {
    return layout_->num_heads_kv * s.tile_begin_kv + head_kv * s.tiles_kv + j;
  }
  /// Index of a query row in lse_correction, and of a key row in permutation.
  std::int64_t row_q(SequenceExtent const& s, std::int64_t head) const { return layout_->num_heads * s.row_begin_q + head * s.seqlen_q; }
  std::int64_t row_kv(SequenceExtent const& s, std::int64_t head_kv) const {
    return layout_->num_heads_kv * s.row_begin_kv + head_kv * s.rows_kv;
  }

  std::int64_t bytes_per_tile(std::int32_t bits) const { return kTileRows * layout_->head_dim_padded * bits / 8; }

 private:
  PreparedLayout const* layout_;
  Byte* slab_;
};

}  // namespace vcattn::formats

namespace vcattn {

/// What a Prepared holds: layout, options, and the slab (owned or the caller's).
struct Prepared::Impl {
  formats::PreparedLayout layout;
  Options options;
  Device device = Device::cpu;
  int device_ordinal = 0;              // of a CUDA device
  std::vector<std::byte> owned;        // with slack for alignment; empty when the caller supplied storage, or on a device
  std::shared_ptr<void> device_owned;  // device memory; empty when the caller supplied storage, or on the CPU
  std::byte* slab = nullptr;
  bool varlen = false;
  double value_energy_removed = 0.0;

  formats::SlabView<std::byte const> view() const { return {layout, slab}; }
};

}  // namespace vcattn
