#pragma once

// One thread that keeps the rings full: Q tiles, K tiles, V tiles with their one-hot rows, block means.

#include "attention/sm90a/scheduler.cuh"
#include "attention/sm90a/smem_layout.cuh"
#include "device/ring.cuh"

namespace vcattn::attention_sm90a {

/// Row 7 holds E4M3 ones. The eight rows from row 7 - j on are the one-hot rows of a V tile whose sums go to column j: row j ones, the
/// others zero.
struct OneHotRows {
  alignas(128) std::uint8_t bytes[(2 * kOneHotRows - 1) * kTileKv];
};
constexpr OneHotRows make_one_hot_rows() {
  constexpr std::uint8_t kOne = 0x38;
  OneHotRows rows{};
  for (int i = 0; i < kTileKv; ++i) rows.bytes[(kOneHotRows - 1) * kTileKv + i] = kOne;
  return rows;
}
static __device__ OneHotRows const one_hot_rows = make_one_hot_rows();

template <class C>
class Producer {
 public:
  __device__ Producer(KernelParams const& p, SmemLayout<C>& smem) : p_(p), smem_(smem) {}

  /// Called by one warp; its first lane copies.
  __device__ void run() {
    bool const leader = threadIdx.x % 32 == 0;
    WorkList<C> list(p_, smem_.last_wave);
    for (Work work; list.next(work);) {
      if (leader && work.key_tiles > 0) load(work);
      __syncwarp();
    }
  }

 private:
  __device__ void load(Work const& work) {
    auto const first = static_cast<std::int32_t>(work.first_kv_tile);
    load_step(first, true, false, 0);  // before Q, whose place is free only when the last products of the query tile before have finished
    load_queries(work);
    int in_window = 0;
#pragma unroll 1
    for (int n = 1; n <= work.key_tiles; ++n) {
      load_step(first + n, n < work.key_tiles, true, in_window);
      if (++in_window == p_.window || n == work.key_tiles) {
        if (p_.v_global_mean != nullptr) load_means(first + n - in_window);
        in_window = 0;
      }
    }
  }

  __device__ void load_queries(Work const& work) {
    Barriers<C>& bar = smem_.barriers;
#pragma unroll
    for (int w = 0; w < C::kConsumers; ++w) {
      ptx::barrier_wait(bar.q_empty[w], q_.empty_parity());
      ptx::barrier_arrive_expect(bar.q_full[w], C::kQueryBytes);
      ptx::copy_box(smem_.q[w], p_.q_map, bar.q_full[w], 0,
                    static_cast<std::int32_t>(work.first_q_row + work.row_begin) + w * kWarpgroupRows);
    }
    q_.advance();
  }

  /// K of `tile`, and V of the tile before it, the `in_window`-th of its window.
  __device__ void load_step(std::int32_t tile, bool keys, bool values, int in_window) {
    ptx::Barrier& full = smem_.barriers.kv_full[kv_.stage];
    ptx::barrier_wait(smem_.barriers.kv_empty[kv_.stage], kv_.empty_parity());
    ptx::barrier_arrive_expect(full, (keys ? C::kKeyBytes : 0) + (values ? C::kValueBytes + C::kOneHotBytes : 0));
    if (keys) ptx::copy_box(smem_.k[kv_.stage], p_.k_map, full, 0, tile * kTileKv);
    if (values) {
      ptx::copy_box(smem_.v[kv_.stage], p_.v_map, full, 0, (tile - 1) * C::kHeadDim);
      ptx::copy_bytes(smem_.v[kv_.stage] + C::kValueBytes, one_hot_rows.bytes + (kOneHotRows - 1 - in_window % kOneHotRows) * kTileKv,
                      C::kOneHotBytes, full);
    }
    kv_.advance();
  }

  __device__ void load_means(std::int32_t first_tile) {
    Barriers<C>& bar = smem_.barriers;
    ptx::barrier_wait(bar.mean_empty[mean_.stage], mean_.empty_parity());
    ptx::barrier_arrive_expect(bar.mean_full[mean_.stage], C::kMeanBytes);
#pragma unroll
    for (int half = 0; half < C::kHeadDim / 64; ++half) {
      ptx::copy_box(smem_.means[mean_.stage] + half * C::kMeanBoxBytes, p_.mean_map, bar.mean_full[mean_.stage], half * 64, first_tile);
    }
    mean_.advance();
  }

  KernelParams const& p_;
  SmemLayout<C>& smem_;
  device::RingPosition<1> q_;
  device::RingPosition<C::kStages> kv_;
  device::RingPosition<C::kMeanStages> mean_;
};

}  // namespace vcattn::attention_sm90a
