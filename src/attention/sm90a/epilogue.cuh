#pragma once

// O = v_descale * sum / l + global mean, and the log-sum-exp, from the promoted sums of a query tile. [EQ-RESTORE] [EQ-LSE]

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/sm90a/scheduler.cuh"
#include "attention/sm90a/softmax.cuh"

namespace vcattn::attention_sm90a {

/// Stores the channels of a pair, which lie `stride` elements apart; in one access where `together`.
template <typename Element, typename Pair>
__device__ __forceinline__ void store_channels(Element* out, std::int64_t stride, bool together, Pair pair) {
  if (together) {
    *reinterpret_cast<Pair*>(out) = pair;
  } else {
    out[0] = pair.x;
    out[stride] = pair.y;
  }
}

__device__ __forceinline__ void store_pair(KernelParams const& p, std::int64_t element, float x, float y) {
  bool const together = p.o_pairs != 0;
  std::int64_t const stride = p.o_stride[3];
  switch (p.o_dtype) {
    case DType::f32:
      return store_channels(static_cast<float*>(p.o) + element, stride, together, float2{x, y});
    case DType::f16:
      return store_channels(static_cast<__half*>(p.o) + element, stride, together, __floats2half2_rn(x, y));
    case DType::bf16:
      return store_channels(static_cast<__nv_bfloat16*>(p.o) + element, stride, together, __floats2bfloat162_rn(x, y));
  }
}

/// Writes rows `i` and `i + 8` of the (sequence, head). acc: their sums, the channels of this thread.
template <class C>
__device__ __forceinline__ void write_rows(KernelParams const& p, Work const& work, std::int64_t i, RowState const (&row)[2],
                                           float const (&acc)[C::kAccRegisters]) {
  formats::SequenceExtent const& s = p.sequences[work.b];
  int const t = static_cast<int>(threadIdx.x & 3);
  std::int64_t const kv_channels = (static_cast<std::int64_t>(work.b) * p.num_heads_kv + work.head_kv) * C::kHeadDim;
  std::int64_t const o_head = (p.varlen != 0 ? s.row_begin_q * p.o_stride[1] : work.b * p.o_stride[0]) + work.head * p.o_stride[2];
  float row_sum[2], inverse[2], correction[2];
  bool exists[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row_sum[r] = row[r].sum + __shfl_xor_sync(~0u, row[r].sum, 1);
    row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 2);
    inverse[r] = row_sum[r] == 0.0f ? 0.0f : __fdiv_rn(1.0f, row_sum[r]);
    exists[r] = i + 8 * r < work.seqlen_q;
    correction[r] = exists[r] ? p.lse_correction[p.num_heads * s.row_begin_q + work.head * s.seqlen_q + i + 8 * r] : 0.0f;
  }
#pragma unroll
  for (int g = 0; g < C::kHeadDim / 8; ++g) {
    int const d = 8 * g + 2 * t;
    if (d >= p.head_dim) continue;
    float2 const descale = *reinterpret_cast<float2 const*>(p.v_descale + kv_channels + d);
    float2 mean{0.0f, 0.0f};
    if (p.v_global_mean != nullptr) mean = *reinterpret_cast<float2 const*>(p.v_global_mean + kv_channels + d);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists[r]) continue;
      bool const empty = row_sum[r] == 0.0f;
      float x = empty ? 0.0f : acc[4 * g + 2 * r] * inverse[r] * descale.x + mean.x;
      float y = empty ? 0.0f : acc[4 * g + 2 * r + 1] * inverse[r] * descale.y + mean.y;
      if (correction[r] != correction[r]) x = y = correction[r];
      store_pair(p, o_head + (i + 8 * r) * p.o_stride[1] + d * p.o_stride[3], x, y);
    }
  }
  if (p.lse == nullptr || t != 0) return;
  std::int64_t const lse_head =
      p.varlen != 0 ? work.head * p.rows_q + s.row_begin_q : (static_cast<std::int64_t>(work.b) * p.num_heads + work.head) * s.seqlen_q;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!exists[r]) continue;
    float const nats = (row[r].constant - core::kCodeOfOne) * core::kNatsPerCode + p.log_bias;
    bool const without = row_sum[r] == 0.0f && correction[r] == correction[r];
    p.lse[lse_head + i + 8 * r] = without ? -INFINITY : logf(row_sum[r]) - nats + correction[r];  // NaN stays
  }
}

}  // namespace vcattn::attention_sm90a
