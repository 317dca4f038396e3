#pragma once

// Which (sequence, head, query tile) a CTA works on. Persistent: CTA c takes items c, c + gridDim.x, ... of the list of all tiles, heads
// in order, so that CTAs that run together share keys and values in L2. Every warp walks the list by itself.
//
// The items of a last, incomplete wave are cut along their keys, so that every CTA gets the same number of key tiles of them: CTA c works
// on positions [begin(c), begin(c + 1)) of the key tiles of these items, one item after another, which is the end of one item, the
// beginning of the next, or both. A second kernel adds the parts up (split.cuh).

#include <climits>

#include "attention/sm90a/params.cuh"
#include "attention/sm90a/tile_config.hpp"

namespace vcattn::attention_sm90a {

struct Work {
  int b, head, head_kv;
  int row_begin;             // first query row
  int first_tile;            // key tiles of this CTA ...
  int key_tiles;             // ... of those that some row of this query tile sees
  int split;                 // number of the item among those of a split last wave; else -1
  int seqlen_q, seqlen_kv;   // below 2^31 - 256
  std::int64_t first_q_row;  // of the (sequence, head), rows of q_codes
  std::int64_t first_kv_tile;

  /// Keys that a query row sees; <= 0: none.
  __device__ int visible_keys(bool causal, int row) const { return causal ? min(seqlen_kv, row + (seqlen_kv - seqlen_q) + 1) : seqlen_kv; }
};

/// The items of the last wave.
struct LastWave {
  int first_item = 0;      // of the list
  int items = 0;           // 0: no item is split
  unsigned key_tiles = 0;  // of every item
  unsigned share = 0;      // key tiles of a CTA; the first `rest` CTAs get one more
  unsigned rest = 0;

  /// First position of a CTA: item * key_tiles + key tile. Items are cut where a window of the accumulators ends.
  __device__ unsigned begin(unsigned cta) const {
    unsigned const even = cta * share + min(cta, rest);
    return even - even % key_tiles % kWindowTiles;
  }
};

/// Query tiles of a (sequence, head) that this launch serves.
template <class C>
__device__ int query_tiles(KernelParams const& p, int pair) {
  if (p.variant >= 0 && p.score_variant[pair] != p.variant) return 0;
  return static_cast<int>((p.sequences[pair / p.num_heads].seqlen_q + C::kTileQ - 1) / C::kTileQ);
}

/// Which items to split among `ctas`. Called by whole warps; the same result everywhere.
template <class C>
__device__ LastWave plan_last_wave(KernelParams const& p, unsigned ctas) {
  if (p.parts == nullptr) return {};
  unsigned items = 0, least = UINT_MAX, most = 0;
  for (int pair = static_cast<int>(threadIdx.x) & 31; pair < p.batch * p.num_heads; pair += 32) {
    auto const tiles = static_cast<unsigned>(query_tiles<C>(p, pair));
    if (tiles == 0) continue;
    items += tiles;
    auto const keys = static_cast<unsigned>(p.sequences[pair / p.num_heads].tiles_kv);
    least = min(least, keys);
    most = max(most, keys);
  }
  items = __reduce_add_sync(~0u, items);
  least = __reduce_min_sync(~0u, least);
  most = __reduce_max_sync(~0u, most);
  unsigned const last = items % ctas;
  if (least != most || last == 0) return {};
  unsigned const total = last * most;
  unsigned const share = total / ctas;
  if (most - share < kLeastSplitGain) return {};
  return {static_cast<int>(items - last), static_cast<int>(last), most, share, total % ctas};
}

template <class C>
class WorkList {
 public:
  __device__ WorkList(KernelParams const& p, LastWave const& last_wave)
      : p_(p),
        last_wave_(last_wave),
        item_(static_cast<int>(blockIdx.x)),
        position_(last_wave.items == 0 ? 0 : last_wave.begin(blockIdx.x)) {}

  /// False when the list is exhausted. Called by whole warps.
  __device__ bool next(Work& work) {
    if (last_wave_.items == 0 || item_ < last_wave_.first_item) {
      int const item = item_;
      item_ += static_cast<int>(gridDim.x);
      return find(item, work);
    }
    unsigned const end = last_wave_.begin(blockIdx.x + 1);
    if (position_ == end) return false;
    unsigned const key_tiles = last_wave_.key_tiles;
    unsigned const n = position_ / key_tiles;
    find(last_wave_.first_item + static_cast<int>(n), work);
    work.first_tile = static_cast<int>(position_ - n * key_tiles);
    work.key_tiles = static_cast<int>(min(end, (n + 1) * key_tiles) - position_);
    work.first_kv_tile += work.first_tile;
    work.split = static_cast<int>(n);
    position_ += static_cast<unsigned>(work.key_tiles);
    return true;
  }

  /// Item number `item` of the list, not smaller than those asked for before. False behind the end of the list.
  __device__ bool find(int item, Work& work) {
    int const lane = static_cast<int>(threadIdx.x) & 31;
    int const pairs = p_.batch * p_.num_heads;
    while (first_pair_ < pairs) {  // 32 (sequence, head) pairs at a time
      int const pair = first_pair_ + lane;
      int const tiles = pair < pairs ? query_tiles<C>(p_, pair) : 0;
      int end = tiles;  // inclusive prefix sum
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        int const other = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += other;
      }
      unsigned const past = __ballot_sync(~0u, item < first_item_ + end);
      if (past != 0) {
        int const owner = __ffs(static_cast<int>(past)) - 1;
        int const begin = __shfl_sync(~0u, end - tiles, owner);
        int const count = __shfl_sync(~0u, tiles, owner);
        fill(work, first_pair_ + owner, item - first_item_ - begin, count);
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
    work.first_tile = 0;
    work.key_tiles = keys <= 0 ? 0 : (keys + kTileKv - 1) / kTileKv;
    work.split = -1;
  }

  KernelParams const& p_;
  LastWave const& last_wave_;
  int item_;           // next item that is not split
  unsigned position_;  // next key tile of the last wave
  int first_item_ = 0;
  int first_pair_ = 0;
};

}  // namespace vcattn::attention_sm90a
