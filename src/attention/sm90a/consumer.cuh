#pragma once

// A consumer warpgroup: 64 query rows against all their key tiles.
//
// Timeline of one warpgroup; the other ones fill the tensor core meanwhile:
//
//   tensor core   | S(n+1) = Q K(n+1)^T | O += P(n) V(n)                  | S(n+2) ...
//   this thread   |  wait S(n+1)        | maximum, t(n+1)   | wait O      | codes, pack P(n+1), every `window` tiles: promote
//
// With kScoresFirst the product S(n+2) starts before the codes are packed. That takes registers: t lives beside S.
//
// The FP8 accumulator is short (13 bits, truncating), so O is summed in it for `window` tiles only. Then the block means of these tiles are
// added by one FP16 product r mu, and the accumulators are added to FP32 sums in shared memory. The row sums r_ij come out of the same
// products: V tiles carry eight one-hot rows, and accumulator column head_dim + j % 8 holds the row sums of the j-th tile of the window.

#include "attention/sm90a/epilogue.cuh"
#include "attention/sm90a/scheduler.cuh"
#include "attention/sm90a/smem_layout.cuh"
#include "attention/sm90a/softmax.cuh"
#include "attention/sm90a/split.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ring.cuh"

namespace vcattn::attention_sm90a {

/// Ring of K and V tiles with the matrix descriptors of the current stage. They move with the ring, away from the products that wait for
/// them: address arithmetic in front of a wgmma is latency that nothing hides.
template <class C>
class OperandRing : public device::RingPosition<C::kStages> {
 public:
  __device__ OperandRing(SmemLayout<C> const& smem, ptx::Swizzle row_swizzle)
      : k_(ptx::matrix_descriptor(smem.k[0], row_swizzle, 16, 8 * C::kHeadDim)),
        v_(ptx::matrix_descriptor(smem.v[0], ptx::Swizzle::bytes_128, 16, 8 * kTileKv)) {}

  __device__ ptx::MatrixDescriptor keys() const { return k_; }
  __device__ ptx::MatrixDescriptor values() const { return v_; }
  __device__ void advance() {
    constexpr std::uint32_t kKeyStep = sizeof(SmemLayout<C>::k[0]) >> 4;
    constexpr std::uint32_t kValueStep = sizeof(SmemLayout<C>::v[0]) >> 4;
    bool const last = this->stage + 1 == C::kStages;
    k_ = k_ + (last ? 0u - (C::kStages - 1) * kKeyStep : kKeyStep);
    v_ = v_ + (last ? 0u - (C::kStages - 1) * kValueStep : kValueStep);
    device::RingPosition<C::kStages>::advance();
  }

 private:
  ptx::MatrixDescriptor k_, v_;
};

template <class C>
class Consumer {
 public:
  __device__ Consumer(KernelParams const& p, SmemLayout<C>& smem, int warpgroup)
      : p_(p),
        smem_(smem),
        bar_(smem.barriers),
        warpgroup_(warpgroup),
        thread_(warpgroup * kWarpgroupThreads + static_cast<int>(threadIdx.x % kWarpgroupThreads)),
        q_descriptor_(ptx::matrix_descriptor(smem.q[warpgroup], kRowSwizzle, 16, 8 * C::kHeadDim)),
        kv_(smem, kRowSwizzle) {}

  __device__ void run();

 private:
  using Acc = float[C::kAccRegisters];
  using Probs = std::uint32_t[C::kProbRegisters];
  static constexpr ptx::Swizzle kRowSwizzle = C::kHeadDim == 128 ? ptx::Swizzle::bytes_128 : ptx::Swizzle::bytes_64;

  __device__ void attend(Work const& work, RowState (&row)[2], Acc& acc);
  __device__ void issue_scores(ScoreTile<C>& tile);
  __device__ void issue_values(Acc& acc, Probs& probs);
  __device__ bool softmax(Work const& work, int n, ScoreTile<C>& tile, RowState (&row)[2], PairTile& pairs, float (&alpha)[2]);
  __device__ void start(Work const& work);
  __device__ void pack(Work const& work, int n, PairTile& pairs, Probs& probs);
  __device__ int next_operands();
  __device__ void carry(RowState (&row)[2], Acc& acc, bool moved, float const (&alpha)[2]);
  __device__ void end_window(RowState (&row)[2], Acc& acc);
  __device__ void promote(RowState (&row)[2], Acc& acc);
  __device__ void add_promoted(RowState const (&row)[2], Acc& acc);
  __device__ void put_sums_aside(Acc& acc);
  __device__ void add_means(Acc& acc, float const (&first)[4], float const (&last)[4]);

  __device__ void release(ptx::Barrier& barrier) {
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(barrier);
  }
  __device__ Visible visible_keys(Work const& work, int n) const {
    int const row = work.row_begin + row_of_thread(warpgroup_);
    auto const keys = [&](int r) { return min(max(work.visible_keys(p_.causal != 0, r) - (work.first_tile + n) * kTileKv, 0), kTileKv); };
    return {{keys(row), keys(row + 8)}};
  }

  KernelParams const& p_;
  SmemLayout<C>& smem_;
  Barriers<C>& bar_;
  int warpgroup_, thread_;
  ptx::MatrixDescriptor q_descriptor_;
  int in_window_ = 0;                               // tiles summed in the accumulators
  int full_tiles_ = 0;                              // key tiles without an invisible key for any row of this warpgroup
  float first_sums_[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // r of the first eight tiles of the window
  float row_factor_ = 0.0f;
  float const* k_descale_ = nullptr;
  device::RingPosition<1> q_;
  OperandRing<C> kv_;
  device::RingPosition<C::kMeanStages> mean_;
};

/// S = Q K^T of the next K tile.
template <class C>
__device__ __forceinline__ void Consumer<C>::issue_scores(ScoreTile<C>& tile) {
  constexpr std::uint32_t kStep = 32 >> 4;  // 32 channels, in the 16-byte units of a descriptor
  ptx::MatrixDescriptor const q = q_descriptor_;
  ptx::MatrixDescriptor const k = kv_.keys();
  ptx::discard(tile.s);
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 32; ++step) {
    if constexpr (C::kScores == Scores::f16) ptx::wgmma_f16_e4m3(tile.s, q + step * kStep, k + step * kStep, step > 0);
    if constexpr (C::kScores == Scores::f32) ptx::wgmma_f32_e4m3(tile.s, q + step * kStep, k + step * kStep, step > 0);
    if constexpr (C::kScores == Scores::s32) ptx::wgmma_s32_s8(tile.s, q + step * kStep, k + step * kStep, step > 0);
  }
  ptx::wgmma_commit();
}

/// O += P V of the next V tile; its one-hot rows put the row sums into the last accumulators.
template <class C>
__device__ __forceinline__ void Consumer<C>::issue_values(Acc& acc, Probs& probs) {
  constexpr std::uint32_t kStep = 32 >> 4;
  ptx::MatrixDescriptor const v = kv_.values();
#pragma unroll
  for (int step = 0; step < kTileKv / 32; ++step) {
    std::uint32_t const a[4] = {probs[4 * step], probs[4 * step + 1], probs[4 * step + 2], probs[4 * step + 3]};
    ptx::wgmma_f32_e4m3(acc, a, v + step * kStep, step > 0 || in_window_ > 0);
  }
  ptx::wgmma_commit();
  ++in_window_;
}

/// Row maxima, row constants, codes of tile n. True if the row constants of this warp moved: what was summed must be multiplied by alpha.
template <class C>
__device__ __forceinline__ bool Consumer<C>::softmax(Work const& work, int n, ScoreTile<C>& tile, RowState (&row)[2], PairTile& pairs,
                                                     float (&alpha)[2]) {
  float factor = row_factor_;
  if constexpr (C::kScores != Scores::f16) {
    if (p_.k_descale != nullptr) factor *= k_descale_[p_.q_blocks_per_tile != 0 ? n : 0];
  }
  bool const partial = n >= full_tiles_;
  Visible visible{{kTileKv, kTileKv}};
  if (partial) {
    visible = visible_keys(work, n);
    mask_scores<C>(tile, visible);
  }
  float maxima[2];
  row_maxima<C>(tile, maxima);
  bool move[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    maxima[r] = visible.keys[r] > 0 ? __fmul_ru(maxima[r], factor) : -INFINITY;
    move[r] = must_move<C>(p_, row[r], maxima[r]);
    alpha[r] = 1.0f;
  }
  bool const moved = __any_sync(~0u, move[0] || move[1]);
  if (moved) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (move[r]) alpha[r] = move_constant<C>(p_, row[r], maxima[r]);
    }
  }
  start_codes(tile, row, factor, pairs);
  ptx::pin(pairs.c);
  return moved;
}

/// Codes to the A operand of P V.
template <class C>
__device__ __forceinline__ void Consumer<C>::pack(Work const& work, int n, PairTile& pairs, Probs& probs) {
  finish_codes<C>(p_, pairs, probs);
  if (n >= full_tiles_) mask_probabilities(probs, visible_keys(work, n));
}

/// What is fixed for a query tile.
template <class C>
__device__ __forceinline__ void Consumer<C>::start(Work const& work) {
  full_tiles_ = max(work.visible_keys(p_.causal != 0, work.row_begin + warpgroup_ * kWarpgroupRows), 0) / kTileKv - work.first_tile;
  std::int64_t const head = static_cast<std::int64_t>(work.b) * p_.num_heads + work.head;
  row_factor_ = p_.score_multiplier[head];
  if constexpr (C::kScores != Scores::f16) {
    if (p_.q_descale == nullptr) return;
    bool const blocks = p_.q_blocks_per_tile != 0;
    std::int64_t const q_row = work.first_q_row + work.row_begin + row_of_thread(warpgroup_);
    row_factor_ *= p_.q_descale[blocks ? q_row * p_.q_blocks_per_tile / formats::kTileRows : head];
    k_descale_ = p_.k_descale + (blocks ? work.first_kv_tile : static_cast<std::int64_t>(work.b) * p_.num_heads_kv + work.head_kv);
  }
}

/// The eight columns of row sums are full: puts them aside and clears them.
template <class C>
__device__ __forceinline__ void Consumer<C>::put_sums_aside(Acc& acc) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    first_sums_[k] = acc[C::kOutRegisters + k];
    acc[C::kOutRegisters + k] = 0.0f;
  }
}

/// O += sum over the tiles of the window of r_ij mu_j, [64, 16] [16, head_dim]. first, last: r of the first and the last eight tiles, in
/// the layout of accumulators, which is that of the A operand. r is rounded to FP16 as mu is: 2^-12 of a mean's distance from the global
/// mean, and the roundings of the tiles are independent. [EQ-RESTORE]
template <class C>
__device__ __forceinline__ void Consumer<C>::add_means(Acc& acc, float const (&first)[4], float const (&last)[4]) {
  constexpr std::uint32_t kEightMeans = 8 * 64 * 2;
  std::uint32_t sums[4] = {ptx::pack_half2(first[0], first[1]), ptx::pack_half2(first[2], first[3]), ptx::pack_half2(last[0], last[1]),
                           ptx::pack_half2(last[2], last[3])};
  ptx::barrier_wait(bar_.mean_full[mean_.stage], mean_.full_parity());
  ptx::MatrixDescriptor const means =
      ptx::matrix_descriptor(smem_.means[mean_.stage], ptx::Swizzle::bytes_128, C::kMeanBoxBytes, kEightMeans);
  ptx::pin(acc);
  ptx::pin(sums);
  ptx::wgmma_fence();
  ptx::wgmma_f32_f16_means(acc, sums, means);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(acc);
  release(bar_.mean_empty[mean_.stage]);
  mean_.advance();
}

/// Ends a window: row sums and block means. [EQ-ROWSUM]
template <class C>
__device__ __forceinline__ void Consumer<C>::end_window(RowState (&row)[2], Acc& acc) {
  bool const halves = in_window_ > kOneHotRows;
  float first[4], last[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float const sums = acc[C::kOutRegisters + k];
    first[k] = halves ? first_sums_[k] : sums;
    last[k] = halves ? sums : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) row[r].sum += (first[2 * r] + first[2 * r + 1]) + (last[2 * r] + last[2 * r + 1]);
  if (p_.v_global_mean != nullptr) add_means(acc, first, last);
  in_window_ = 0;
}

/// Ends a window that is not the last one: its sums go to the FP32 sums in shared memory.
template <class C>
__device__ __forceinline__ void Consumer<C>::promote(RowState (&row)[2], Acc& acc) {
  end_window(row, acc);
  bool const fresh = row[0].out_factor == 0.0f && row[1].out_factor == 0.0f;
#pragma unroll
  for (int k = 0; k < C::kOutRegisters / 4; ++k) {
    float4& out = smem_.out[k][thread_];
    float4 sum = fresh ? float4{0.0f, 0.0f, 0.0f, 0.0f} : out;
    sum.x = __fmaf_rn(sum.x, row[0].out_factor, acc[4 * k]);
    sum.y = __fmaf_rn(sum.y, row[0].out_factor, acc[4 * k + 1]);
    sum.z = __fmaf_rn(sum.z, row[1].out_factor, acc[4 * k + 2]);
    sum.w = __fmaf_rn(sum.w, row[1].out_factor, acc[4 * k + 3]);
    out = sum;
  }
  row[0].out_factor = row[1].out_factor = 1.0f;
}

/// Adds the windows before to the accumulators of the last one.
template <class C>
__device__ __forceinline__ void Consumer<C>::add_promoted(RowState const (&row)[2], Acc& acc) {
  if (row[0].out_factor == 0.0f && row[1].out_factor == 0.0f) return;
#pragma unroll
  for (int k = 0; k < C::kOutRegisters / 4; ++k) {
    float4 const before = smem_.out[k][thread_];
    acc[4 * k] = __fmaf_rn(before.x, row[0].out_factor, acc[4 * k]);
    acc[4 * k + 1] = __fmaf_rn(before.y, row[0].out_factor, acc[4 * k + 1]);
    acc[4 * k + 2] = __fmaf_rn(before.z, row[1].out_factor, acc[4 * k + 2]);
    acc[4 * k + 3] = __fmaf_rn(before.w, row[1].out_factor, acc[4 * k + 3]);
  }
}

/// Takes the accumulators from one tile to the next: new row constants, end of a window. [EQ-RESCALE]
template <class C>
__device__ __forceinline__ void Consumer<C>::carry(RowState (&row)[2], Acc& acc, bool moved, float const (&alpha)[2]) {
  if (moved) {
#pragma unroll
    for (int k = 0; k < C::kAccRegisters; ++k) acc[k] *= alpha[k / 2 % 2];
#pragma unroll
    for (int k = 0; k < 4; ++k) first_sums_[k] *= alpha[k / 2];
  }
  if (in_window_ == p_.window) {
    promote(row, acc);
  } else if (in_window_ == kOneHotRows) {
    put_sums_aside(acc);
  }
}

/// Goes to the next stage and waits for its operands. Returns the stage before it, which is free once its products have finished.
template <class C>
__device__ __forceinline__ int Consumer<C>::next_operands() {
  int const stage = kv_.stage;
  kv_.advance();
  ptx::barrier_wait(bar_.kv_full[kv_.stage], kv_.full_parity());
  return stage;
}

template <class C>
__device__ __forceinline__ void Consumer<C>::attend(Work const& work, RowState (&row)[2], Acc& acc) {
  Probs probs;
  ScoreTile<C> tile;
  PairTile pairs;
  float alpha[2];
  int const last = work.key_tiles - 1;

  start(work);
  ptx::barrier_wait(bar_.q_full[warpgroup_], q_.full_parity());
  ptx::barrier_wait(bar_.kv_full[kv_.stage], kv_.full_parity());
  ptx::wgmma_fence();
  issue_scores(tile);
  ptx::wgmma_wait<0>();
  ptx::pin(tile.s);
  bool moved = softmax(work, 0, tile, row, pairs, alpha);
  release(bar_.kv_empty[next_operands()]);
  auto const finish_softmax = [&](int n) {
    if (n > 0) carry(row, acc, moved, alpha);
    pack(work, n, pairs, probs);
  };
  if constexpr (!C::kScoresFirst) finish_softmax(0);

#pragma unroll 1
  for (int n = 0; n < last; ++n) {
    if constexpr (C::kScoresFirst) {
      ptx::wgmma_fence();
      issue_scores(tile);
      finish_softmax(n);
    }
    ptx::pin(probs);
    ptx::pin(acc);
    ptx::wgmma_fence();
    if constexpr (!C::kScoresFirst) issue_scores(tile);
    issue_values(acc, probs);
    ptx::wgmma_wait<1>();  // S(n + 1)
    ptx::pin(tile.s);
    moved = softmax(work, n + 1, tile, row, pairs, alpha);
    int const stage = next_operands();
    ptx::wgmma_wait<0>();  // P V(n)
    ptx::pin(acc);
    ptx::pin(probs);
    release(bar_.kv_empty[stage]);
    if constexpr (!C::kScoresFirst) finish_softmax(n + 1);
  }
  release(bar_.q_empty[warpgroup_]);
  q_.advance();

  if constexpr (C::kScoresFirst) finish_softmax(last);
  ptx::pin(probs);
  ptx::pin(acc);
  ptx::wgmma_fence();
  issue_values(acc, probs);
  ptx::wgmma_wait<0>();
  ptx::pin(acc);
  release(bar_.kv_empty[kv_.stage]);
  kv_.advance();
  end_window(row, acc);
  add_promoted(row, acc);
}

template <class C>
__device__ __forceinline__ void Consumer<C>::run() {
  WorkList<C> list(p_, smem_.last_wave);
  for (Work work; list.next(work);) {
    RowState row[2];
    Acc acc{};
    if (work.key_tiles > 0) attend(work, row, acc);
    if (work.split >= 0) {
      store_part<C>(part_of<C>(p_, blockIdx.x, work.split), row, acc, thread_);
    } else {
      write_rows<C>(p_, work, work.row_begin + row_of_thread(warpgroup_), row, acc);
    }
  }
}

}  // namespace vcattn::attention_sm90a
