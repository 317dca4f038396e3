#pragma once

// Where centroids begin, and where a Lloyd step moves them. [EQ-KMEANS]

#include "grouping/cuda/value_rows.cuh"

namespace vcattn::grouping::cuda {

/// grid: heads; a thread per channel. Takes the stored centroids, or strided rows, and makes their mean the head's origin: a large mean of
/// V would cost the distances their precision.
template <int kWidth>
__global__ void __launch_bounds__(kWidth) start_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.x));
  int const channel = static_cast<int>(threadIdx.x);
  bool const used = channel < p.head_dim;
  float* const means = p.means + static_cast<std::int64_t>(h.index) * p.padded_clusters * kWidth + channel;
  float sum = 0.0f;
#pragma unroll 8
  for (int j = 0; j < h.clusters; ++j) {
    std::int64_t const row = (2 * j + 1) * h.count / (2 * h.clusters);
    std::int64_t const stored = (static_cast<std::int64_t>(h.index) * p.clusters + j) * p.head_dim + channel;
    float value = 0.0f;
    if (used) value = p.warm != 0 ? p.centroids[stored] : load_element(p, h.first_element + row * p.stride[1] + channel * p.stride[3]);
    means[j * kWidth] = value;
    sum += value;
  }
  Bf16 const origin = __float2bfloat16_rn(h.clusters > 0 ? sum / static_cast<float>(h.clusters) : 0.0f);
  p.origin[h.index * kWidth + channel] = __bfloat16_as_ushort(origin);
#pragma unroll 8
  for (int j = 0; j < p.padded_clusters; ++j) means[j * kWidth] = j < h.clusters ? means[j * kWidth] - __bfloat162float(origin) : 0.0f;
}

/// grid: (clusters, heads); a thread per channel. Moves a centroid to the mean of its rows; an empty cluster keeps its centroid.
template <int kWidth>
__global__ void __launch_bounds__(kWidth) update_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.y));
  int const cluster = static_cast<int>(blockIdx.x);
  if (cluster >= h.clusters) return;
  int const channel = static_cast<int>(threadIdx.x);
  std::int64_t const first = static_cast<std::int64_t>(h.index) * kFitSlices * p.padded_clusters + cluster;
  float sum = 0.0f;
  std::int32_t count = 0;
#pragma unroll
  for (int slice = 0; slice < kFitSlices; ++slice) {
    std::int64_t const i = first + static_cast<std::int64_t>(slice) * p.padded_clusters;
    sum += p.sums[i * kWidth + channel];
    count += p.counts[i];
  }
  if (count == 0) return;
  p.means[(static_cast<std::int64_t>(h.index) * p.padded_clusters + cluster) * kWidth + channel] = sum / static_cast<float>(count);
}

}  // namespace vcattn::grouping::cuda
