#pragma once

// What every preparation kernel is told, and where a tile is.

#include <cstdint>

#include "formats/prepared_layout.hpp"

namespace vcattn::preparation::cuda {

/// A caller's tensor [batch, row, head, channel]; strides in elements.
struct Tensor {
  void const* data;
  std::int64_t stride[4];
  DType dtype;
  std::int32_t head_dim;
  std::int32_t direct;     // copied as it is, 16 bytes at a time; else turned into FP32 and rotated on the way
  std::int32_t runs;       // eight channels and their table entries can be read at once
  std::int32_t row_bytes;  // stride[1] in bytes, where direct or runs

  /// Channel `channel` of row `row` of the (sequence, head) that begins at element `origin`, where direct or runs. One instruction a row.
  template <DType kType>
  __device__ __forceinline__ std::byte const* address(std::int64_t origin, std::int32_t row, int channel) const {
    std::byte const* const first = static_cast<std::byte const*>(data) + (origin + channel) * static_cast<int>(dtype_bytes(kType));
    return first + std::int64_t{row} * row_bytes;
  }
};

struct RopeTables {
  float const* cos;  // nullptr: no RoPE
  float const* sin;
  std::int32_t rotary_dim, first_channel;
  std::int32_t interleaved;
};

/// Q of all heads, or K.
struct OperandParams {
  Tensor tensor;
  std::byte* codes;
  std::uint8_t* scale_factors;      // slab; NVFP4 only
  float* descale;                   // slab: per block, or per head
  std::int32_t block_log2;          // log2 of the rows per descale; negative: one per head
  std::uint32_t* amax;              // workspace [heads]: FP32 bits, not negative, so that they order like integers
  std::uint32_t* norm;              // workspace [heads]: largest norm of a code row, FP32 bits
  std::int32_t const* permutation;  // K: slab; Q: nullptr
  float limit;                      // largest magnitude of a code, for shaped rounding
  std::int32_t* moment;             // workspace [heads][width][width], where the other operand is shaped
  std::byte* feedback;              // workspace [KV heads] FeedbackTables, where this one is
};

struct KernelParams {
  formats::SequenceExtent const* sequences;
  std::int32_t batch, num_heads, num_heads_kv;
  std::int32_t varlen;
  std::int64_t tiles;  // that this kernel walks over
  RopeTables rope;
  OperandParams q, k;
  Tensor v;

  std::int32_t k_mean_on, hadamard, unit;
  std::int32_t v_mean_on, emc, v_per_channel;
  std::int32_t v_blocks;  // of a tile; 1 without block means
  float v_code_max;
  float softmax_scale;
  float codes_per_product;  // softmax_scale * 8 log2(e)
  float f16_bound;          // largest score bound of a head with FP16 scores; negative: none

  // Slab.
  float* score_multiplier;
  float* score_bound;
  formats::ScoreVariant* score_variant;
  float* lse_correction;
  float* q_mean;          // [tiles][width]; nullptr: no Q means
  std::uint16_t* k_high;  // BF16 [tiles][128][width] where there are Q means
  std::byte* v_codes;
  std::uint8_t* v_scale_factors;  // NVFP4 only
  float* v_descale;
  std::uint16_t* v_mean;
  float* v_global_mean;

  // Workspace. T: tiles of all (sequence, KV head); heads: (sequence, KV head).
  std::uint32_t* q_mean_norm;  // [batch * num_heads]: largest norm of a query tile's mean, FP32 bits
  std::uint32_t* nonfinite;    // [heads]: K or V holds a value that is not finite
  float* k_mean;               // [heads][width], 0 without K mean
  float* k_tile_sums;          // [T][width]
  float* v_tile_sums;          // [T][width]; later what FP16 loses of the means of a tile [EQ-EMC]
  float* v_block_sums;         // [T][v_blocks][width]; those of tiles where a tile is one block
  float* v_tile_amax;          // [T][width]
  std::uint32_t* v_dropped;    // [T][4]: bit per row that holds a value that is not finite
  float* v_residual_amax;      // [heads][width]
  float* v_mean_amax;          // [heads][width]
  float* v_inverse;            // [heads][width]: 1 / v_descale
};

/// Whose tiles they are; K and V share theirs.
enum class Role { query, key };

/// One tile of 128 rows of a (sequence, head).
struct TilePlace {
  std::int64_t origin;      // element of row 0 of the sequence and head in the caller's tensor
  std::int64_t list;        // K, V: first entry of the permutation of the head; Q: first row of the head in lse_correction
  std::int32_t index;       // in the slab
  std::int32_t head_index;  // sequence * num_heads + head
  std::int32_t head_kv;     // the same of the KV head that it belongs to
  std::int32_t row, rows;   // first row of the tile, and rows of the sequence

  /// Valid rows.
  __device__ __forceinline__ int count() const { return min(static_cast<int>(formats::kTileRows), rows - row); }

  template <Role kRole>
  __device__ static TilePlace of(KernelParams const& p, Tensor const& tensor, std::int32_t index) {
    constexpr bool kQuery = kRole == Role::query;
    std::int32_t const num_heads = kQuery ? p.num_heads : p.num_heads_kv;
    auto const first_tile = [&](formats::SequenceExtent const& s) { return num_heads * (kQuery ? s.tile_begin_q : s.tile_begin_kv); };
    // The last sequence that begins at this tile or before it; one without tiles begins where the next one does.
    int b = 0;
    for (int end = p.batch; end - b > 1;) {
      int const middle = (b + end) / 2;
      (first_tile(p.sequences[middle]) <= index ? b : end) = middle;
    }
    auto const& s = p.sequences[b];
    auto const within = static_cast<std::uint32_t>(index - first_tile(s));
    auto const tiles = static_cast<std::uint32_t>(kQuery ? s.tiles_q : s.tiles_kv);
    std::uint32_t const head = within / tiles;
    TilePlace at;
    at.index = index;
    at.head_index = b * num_heads + static_cast<std::int32_t>(head);
    at.head_kv = kQuery ? at.head_index / (p.num_heads / p.num_heads_kv) : at.head_index;
    std::int64_t const row_begin = kQuery ? s.row_begin_q : s.row_begin_kv;
    at.origin = (p.varlen != 0 ? row_begin * tensor.stride[1] : b * tensor.stride[0]) + head * tensor.stride[2];
    at.list = num_heads * row_begin + head * (kQuery ? s.seqlen_q : s.rows_kv);
    at.row = static_cast<std::int32_t>((within - head * tiles) * static_cast<std::uint32_t>(formats::kTileRows));
    at.rows = static_cast<std::int32_t>(kQuery ? s.seqlen_q : s.seqlen_kv);
    return at;
  }
};

/// The tiles of a CTA, which are neighbours: for (TileWalk<kRole> walk(p, tensor); walk.more(); walk.step()) ... walk.at, and walk.next
/// where walk.has_next(); behind the last tile walk.next has no valid rows.
template <Role kRole>
class TileWalk {
 public:
  TilePlace at, next;

  __device__ __forceinline__ TileWalk(KernelParams const& p, Tensor const& tensor) : p_(p), tensor_(tensor) {
    std::int64_t const begin = p.tiles * blockIdx.x / gridDim.x;
    left_ = static_cast<int>(p.tiles * (blockIdx.x + 1) / gridDim.x - begin);
    if (left_ > 0) at = next = TilePlace::of<kRole>(p, tensor, static_cast<std::int32_t>(begin));
    advance();
  }

  __device__ __forceinline__ bool more() const { return left_ > 0; }
  __device__ __forceinline__ bool has_next() const { return left_ > 1; }
  /// The tile after this one belongs to another head, or there is none.
  __device__ __forceinline__ bool ends_head() const { return left_ <= 1 || next.head_index != at.head_index; }
  __device__ __forceinline__ void step() {
    at = next;
    --left_;
    advance();
  }

 private:
  __device__ __forceinline__ void advance() {
    if (!has_next()) {
      next.rows = next.row;
      return;
    }
    ++next.index;
    next.row += static_cast<int>(formats::kTileRows);
    if (next.row >= next.rows) next = TilePlace::of<kRole>(p_, tensor_, next.index);
  }

  KernelParams const& p_;
  Tensor const& tensor_;
  int left_;
};

}  // namespace vcattn::preparation::cuda
