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

/// Writes row `i` of the (sequence, head). out: sums of this thread, elements (2 r, 2 r + 1) of each float4.
template <class C>
__device__ void write_row(KernelParams const& p, Work const& work, std::int64_t i, int r, RowState const& row, float row_sum,
                          float4 const (*out)[C::kConsumers * kWarpgroupThreads], int thread) {
  formats::SequenceExtent const& s = p.sequences[work.b];
  int const t = static_cast<int>(threadIdx.x & 3);
  float const correction = p.lse_correction[p.num_heads * s.row_begin_q + static_cast<std::int64_t>(work.head) * s.seqlen_q + i];
  bool const finite = correction == correction;
  bool const empty = row_sum == 0.0f;
  float const inverse = empty ? 0.0f : __fdiv_rn(1.0f, row_sum);
  std::int64_t const kv_channels = (static_cast<std::int64_t>(work.b) * p.num_heads_kv + work.head_kv) * C::kHeadDim;
  std::int64_t const o_row =
      (p.varlen != 0 ? s.row_begin_q * p.o_stride[1] : work.b * p.o_stride[0]) + work.head * p.o_stride[2] + i * p.o_stride[1];
  for (int d = 2 * t; d < p.head_dim; d += 8) {  // head_dim is a multiple of 8
    float value[2] = {0.0f, 0.0f};
    if (!empty) {
      float4 const sums = out[d / 8][thread];
      float const pair[2] = {r == 0 ? sums.x : sums.z, r == 0 ? sums.y : sums.w};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        value[c] = pair[c] * inverse * p.v_descale[kv_channels + d + c];
        if (p.v_global_mean != nullptr) value[c] += p.v_global_mean[kv_channels + d + c];
      }
    }
    if (!finite) value[0] = value[1] = correction;
    store_pair(p, o_row + d * p.o_stride[3], value[0], value[1]);
  }
  if (p.lse == nullptr || t != 0) return;
  float lse = correction;
  if (finite) {
    lse = empty ? -INFINITY : logf(row_sum) - (row.constant - core::kCodeOfOne) * core::kNatsPerCode - p.log_bias + correction;
  }
  p.lse[(p.varlen != 0 ? work.head * p.rows_q + s.row_begin_q
                       : (static_cast<std::int64_t>(work.b) * p.num_heads + work.head) * s.seqlen_q) +
        i] = lse;
}

/// Rows `i` and `i + 8`.
template <class C>
__device__ void write_rows(KernelParams const& p, Work const& work, std::int64_t i, RowState const (&row)[2],
                           float4 const (*out)[C::kConsumers * kWarpgroupThreads], int thread) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float row_sum = row[r].sum;
    row_sum += __shfl_xor_sync(~0u, row_sum, 1);
    row_sum += __shfl_xor_sync(~0u, row_sum, 2);
    if (i + 8 * r < work.seqlen_q) write_row<C>(p, work, i + 8 * r, r, row[r], row_sum, out, thread);
  }
}

}  // namespace vcattn::attention_sm90a
