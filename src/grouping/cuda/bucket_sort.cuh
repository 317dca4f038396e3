#pragma once

// Stable counting sort of the rows by bucket.

#include "grouping/cuda/value_rows.cuh"

namespace vcattn::grouping::cuda {

inline constexpr int kScanThreads = 1024;
inline constexpr int kScatterThreads = 256;
inline constexpr int kScatterWarps = kScatterThreads / kWarpLanes;

/// Sum over the threads before this one; `total` gets the sum over all. warp_sums: [kScanThreads / kWarpLanes], shared.
__device__ inline std::int32_t exclusive_block_sum(std::int32_t x, std::int32_t* warp_sums, std::int32_t& total) {
  int const lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int const warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  std::int32_t inclusive = x;
  for (int step = 1; step < kWarpLanes; step *= 2) {
    std::int32_t const below = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  if (lane == kWarpLanes - 1) warp_sums[warp] = inclusive;
  __syncthreads();
  std::int32_t before = 0;
  total = 0;
  for (int i = 0; i < kScanThreads / kWarpLanes; ++i) {
    if (i == warp) before = total;
    total += warp_sums[i];
  }
  __syncthreads();
  return before + inclusive - x;
}

/// grid: heads; a thread per bucket. Turns the slices' counts into the positions where their rows begin, buckets first, then slices.
__global__ void __launch_bounds__(kScanThreads) offset_kernel(__grid_constant__ Params const p) {
  __shared__ std::int32_t warp_sums[kScanThreads / kWarpLanes];
  Head const h = head_of(p, static_cast<int>(blockIdx.x));
  int const slices = static_cast<int>((h.count + kSliceRows - 1) / kSliceRows);
  int const buckets = p.num_buckets();
  std::int32_t begin = 0;  // of this round of buckets
  for (int first = 0; first < buckets; first += kScanThreads) {
    int const bucket = first + static_cast<int>(threadIdx.x);
    std::int32_t* const counts = p.bucket_offsets + static_cast<std::int64_t>(h.index) * p.row_slices * buckets + bucket;
    std::int32_t rows = 0;
    if (bucket < buckets) {
#pragma unroll 8
      for (int slice = 0; slice < slices; ++slice) rows += counts[static_cast<std::int64_t>(slice) * buckets];
    }
    std::int32_t total;
    std::int32_t position = begin + exclusive_block_sum(rows, warp_sums, total);
    begin += total;
    if (bucket >= buckets) continue;
#pragma unroll 8
    for (int slice = 0; slice < slices; ++slice) {
      std::int32_t const count = counts[static_cast<std::int64_t>(slice) * buckets];
      counts[static_cast<std::int64_t>(slice) * buckets] = position;
      position += count;
    }
  }
}

/// grid: (row_slices, heads). Writes the permutation; rows that are not grouped keep their places.
__global__ void __launch_bounds__(kScatterThreads) scatter_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.y));
  std::int64_t const slice_begin = static_cast<std::int64_t>(blockIdx.x) * kSliceRows;
  std::int32_t* const permutation = p.permutation + h.first_row;
  int const thread = static_cast<int>(threadIdx.x);
  std::int64_t const slice_end = min(slice_begin + kSliceRows, h.rows);
  for (std::int64_t row = max(slice_begin, h.count) + thread; row < slice_end; row += kScatterThreads)
    permutation[row] = static_cast<std::int32_t>(row);
  if (slice_begin >= h.count) return;

  extern __shared__ std::int32_t warp_positions[];  // [kScatterWarps][buckets]: rows of a warp, then where its next row goes
  int const buckets = p.num_buckets();
  for (int i = thread; i < kScatterWarps * buckets; i += kScatterThreads) warp_positions[i] = 0;
  __syncthreads();

  constexpr int kSteps = kSliceRows / kScatterThreads;
  int const lane = thread % kWarpLanes;
  std::int32_t* const positions = warp_positions + thread / kWarpLanes * buckets;
  std::int64_t const first = slice_begin + static_cast<std::int64_t>(thread / kWarpLanes) * kSteps * kWarpLanes + lane;
  int bucket_of[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    std::int64_t const row = first + i * kWarpLanes;
    bucket_of[i] = row < h.count ? p.buckets[h.first_row + row] : -1;
  }
  // Rows of the warp in one bucket: the lanes that hold it, of which the first one counts.
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    unsigned const same = __match_any_sync(~0u, bucket_of[i]);
    if (bucket_of[i] >= 0 && lane == __ffs(static_cast<int>(same)) - 1) positions[bucket_of[i]] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  std::int32_t const* const offsets = p.bucket_offsets + (static_cast<std::int64_t>(h.index) * p.row_slices + blockIdx.x) * buckets;
  for (int bucket = thread; bucket < buckets; bucket += kScatterThreads) {
    std::int32_t position = offsets[bucket];
    for (int warp = 0; warp < kScatterWarps; ++warp) {
      std::int32_t const rows = warp_positions[warp * buckets + bucket];
      warp_positions[warp * buckets + bucket] = position;
      position += rows;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    unsigned const same = __match_any_sync(~0u, bucket_of[i]);
    std::int32_t position = 0;
    if (bucket_of[i] >= 0) {
      position = positions[bucket_of[i]] + __popc(same & ((1u << lane) - 1));
      permutation[position] = static_cast<std::int32_t>(first + i * kWarpLanes);
    }
    __syncwarp();
    if (bucket_of[i] >= 0 && lane == __ffs(static_cast<int>(same)) - 1) positions[bucket_of[i]] = position + __popc(same);
    __syncwarp();
  }
}

}  // namespace vcattn::grouping::cuda
