#pragma once

// Which (sequence, head, query tile) a CTA works on. Persistent: CTA c takes items c, c + gridDim.x, ... of the list of all tiles, heads
// in order, so that CTAs that run together share keys and values in L2. Every warp walks the list by itself.

#include "attention/sm90a/params.cuh"
#include "attention/sm90a/tile_config.hpp"

namespace vcattn::attention_sm90a {

struct Work {
  int b, head, head_kv;
  int row_begin;             // first query row
  int key_tiles;             // tiles that some row of this query tile sees
  int seqlen_q, seqlen_kv;   // below 2^31 - 256
  std::int64_t first_q_row;  // of the (sequence, head), rows of q_codes
  std::int64_t first_kv_tile;

  /// Keys that a query row sees; <= 0: none.
  __device__ int visible_keys(bool causal, int row) const { return causal ? min(seqlen_kv, row + (seqlen_kv - seqlen_q) + 1) : seqlen_kv; }
};

template <class C>
class WorkList {
 public:
  __device__ explicit WorkList(KernelParams const& p) : p_(p), item_(blockIdx.x) {}

  /// False when the list is exhausted. Called by whole warps.
  __device__ bool next(Work& work) {
    int const lane = static_cast<int>(threadIdx.x) & 31;
    int const pairs = p_.batch * p_.num_heads;
    while (first_pair_ < pairs) {  // 32 (sequence, head) pairs at a time
      int const pair = first_pair_ + lane;
      int tiles = 0;
      if (pair < pairs && (p_.variant < 0 || p_.score_variant[pair] == p_.variant)) {
        tiles = static_cast<int>((p_.sequences[pair / p_.num_heads].seqlen_q + C::kTileQ - 1) / C::kTileQ);
      }
      int end = tiles;  // inclusive prefix sum
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        int const other = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += other;
      }
      unsigned const past = __ballot_sync(~0u, item_ < first_item_ + end);
      if (past != 0) {
        int const owner = __ffs(static_cast<int>(past)) - 1;
        int const begin = __shfl_sync(~0u, end - tiles, owner);
        int const count = __shfl_sync(~0u, tiles, owner);
        fill(work, first_pair_ + owner, static_cast<int>(item_ - first_item_) - begin, count);
        item_ += gridDim.x;
        return true;
      }
      first_item_ += __shfl_sync(~0u, end, 31);
      first_pair_ += 32;
    }
    return false;
  }

 private:
  __device__ void fill(Work& work, int pair, int tile, int count) const {
    work.b = pair / p_.num_heads;
    work.head = pair % p_.num_heads;
    work.head_kv = work.head / (p_.num_heads / p_.num_heads_kv);
    formats::SequenceExtent const& s = p_.sequences[work.b];
    work.seqlen_q = static_cast<int>(s.seqlen_q);
    work.seqlen_kv = static_cast<int>(s.seqlen_kv);
    work.row_begin = (p_.causal != 0 ? count - 1 - tile : tile) * C::kTileQ;  // causal: the longest first
    work.first_q_row = (p_.num_heads * s.tile_begin_q + work.head * s.tiles_q) * formats::kTileRows;
    work.first_kv_tile = p_.num_heads_kv * s.tile_begin_kv + work.head_kv * s.tiles_kv;
    int const last_row = min(work.row_begin + C::kTileQ, work.seqlen_q) - 1;
    int const keys = work.visible_keys(p_.causal != 0, last_row);
    work.key_tiles = keys <= 0 ? 0 : (keys + kTileKv - 1) / kTileKv;
  }

  KernelParams const& p_;
  std::int64_t item_;
  std::int64_t first_item_ = 0;
  int first_pair_ = 0;
};

}  // namespace vcattn::attention_sm90a
