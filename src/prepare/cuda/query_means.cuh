#pragma once

// Means of the query tiles, and what they leave of a head: the largest magnitude after they are subtracted. [EQ-QMEAN]

#include "core/fixed_order.hpp"
#include "prepare/cuda/query_key.cuh"

namespace vcattn::preparation::cuda {

template <DType kType, int kWidth>
struct QueryMeansSmem {
  static constexpr int kPitch = kWidth + 4;  // neighbouring rows begin in other banks

  RowStage<kType, kWidth, kAmaxThreads> stages[tile_warps(kAmaxThreads)];
  float x[kTileRows][kPitch];
  float partials[core::kRowPartials][kWidth];
  float mean[kWidth];
};

/// core::lane_dot of a row with itself, by a warp: lane l has channels 4 l .. 4 l + 3.
template <int kWidth>
__device__ __forceinline__ float squared_norm_of_row(float const* row) {
  constexpr int kDotLanes = kWidth / core::kChannelsPerLane;
  float const* const own = row + static_cast<int>(threadIdx.x) % kDotLanes * core::kChannelsPerLane;
  float sum = own[0] * own[0];
#pragma unroll
  for (int c = 1; c < core::kChannelsPerLane; ++c) sum = core::fma_f32(own[c], own[c], sum);
#pragma unroll
  for (int stride = kDotLanes / 2; stride >= 1; stride /= 2) sum += __shfl_xor_sync(kAllLanes, sum, stride);
  return sum;
}

template <DType kType, int kWidth>
__global__ void __launch_bounds__(tile_threads(kAmaxThreads), 2) query_means_kernel(__grid_constant__ KernelParams const p) {
  extern __shared__ uint4 memory[];
  auto& smem = *reinterpret_cast<QueryMeansSmem<kType, kWidth>*>(memory);
  int const thread = static_cast<int>(threadIdx.x);
  float largest = 0.0f;
  float largest_square = 0.0f;
  for (RowWalk<kType, kWidth, Role::query, kAmaxThreads> walk(p, smem.stages); walk.tiles.more(); walk.step()) {
    Row<kWidth, kAmaxThreads> row = walk.template transformed<Sweep::means, true>();
    TilePlace const& at = walk.tiles.at;
#pragma unroll
    for (int c = 0; c < row.kChannels; c += kChannelsPerLoad) {
      float const* const y = row.x + c;
      auto* const to = reinterpret_cast<float4*>(smem.x[row.in_tile()] + row.channel_of(c));
      to[0] = make_float4(y[0], y[1], y[2], y[3]);
      to[1] = make_float4(y[4], y[5], y[6], y[7]);
    }
    __syncthreads();
    // [EQ-FIXED-ORDER] Rows that are not valid are zeros, which change no sum that started at +0.
    constexpr int kThreadsPerPartial = tile_threads(kAmaxThreads) / core::kRowPartials;
    int const partial = thread / kThreadsPerPartial;
#pragma unroll
    for (int d = thread % kThreadsPerPartial; d < kWidth; d += kThreadsPerPartial) {
      float sum = 0.0f;
#pragma unroll
      for (int r = 0; r < kTileRows; r += core::kRowPartials) sum += smem.x[partial + r][d];
      smem.partials[partial][d] = sum;
    }
    __syncthreads();
    if (thread < kWidth) {
      float tree[core::kRowPartials];
#pragma unroll
      for (int k = 0; k < core::kRowPartials; ++k) tree[k] = smem.partials[k][thread];
#pragma unroll
      for (int stride = core::kRowPartials / 2; stride >= 1; stride /= 2) {
#pragma unroll
        for (int k = 0; k < stride; ++k) tree[k] += tree[k + stride];
      }
      float const mean = tree[0] / static_cast<float>(at.count());
      smem.mean[thread] = mean;
      p.q_mean[at.index * std::int64_t{kWidth} + thread] = mean;
    }
    __syncthreads();
    if (row.in_tile() < at.count()) row.subtract(smem.mean);
    largest = fmaxf(largest, row.amax());
    if (thread < 32) largest_square = fmaxf(largest_square, squared_norm_of_row<kWidth>(smem.mean));
    if (!walk.tiles.ends_head()) continue;
    raise(p.q.amax + at.head_index, largest);
    if (thread == 0) atomicMax(p.q_mean_norm + at.head_index, __float_as_uint(sqrtf(largest_square)));
    largest = largest_square = 0.0f;
  }
}

}  // namespace vcattn::preparation::cuda
