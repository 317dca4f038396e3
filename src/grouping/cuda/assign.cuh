#pragma once

// The bucket of every row: its cluster on the chain, and how far it leans towards the next one. [EQ-CHAIN]

#include "grouping/cuda/centroids.cuh"

namespace vcattn::grouping::cuda {

inline constexpr int kAssignThreads = 256;
inline constexpr int kAssignWarps = kAssignThreads / kWarpLanes;

template <int kWidth>
struct AssignSmem {
  CentroidTile centroids;
  float* bins_per_distance;   // [padded_clusters]
  float* distances;           // [kAssignWarps][kRowsPerMma][pitch]
  std::int32_t* bucket_rows;  // [padded_clusters * bins]
  Bf16* origin;               // [kWidth]

  /// Shifts the banks of a row by those of a quad of columns.
  static constexpr int pitch(int padded_clusters) { return padded_clusters + 8; }
  static constexpr int bytes(int padded_clusters, int bins) {
    return CentroidTile::bytes<kWidth>(padded_clusters) +
           (padded_clusters + kAssignWarps * kRowsPerMma * pitch(padded_clusters) + padded_clusters * bins) *
               static_cast<int>(sizeof(float)) +
           2 * kWidth;
  }
  __device__ AssignSmem(unsigned char* cursor, int padded_clusters, int bins)
      : centroids(take_centroid_tile<kWidth>(cursor, padded_clusters)),
        bins_per_distance(take<float>(cursor, padded_clusters)),
        distances(take<float>(cursor, kAssignWarps * kRowsPerMma * pitch(padded_clusters))),
        bucket_rows(take<std::int32_t>(cursor, padded_clusters * bins)),
        origin(take<Bf16>(cursor, kWidth)) {}
};

/// Bin of a row on its way from the cluster's predecessor to its successor; d^2(predecessor) - d^2(successor) is -D at the first and D at
/// the second, D their squared distance. At the ends of the chain the cluster itself stands in for the missing neighbour.
__device__ inline int chain_bin(float const* distances, float const* bins_per_distance, int cluster, int clusters, int bins) {
  float const lean = distances[max(cluster - 1, 0)] - distances[min(cluster + 1, clusters - 1)];
  float const middle = 0.5f * static_cast<float>(bins);
  return static_cast<int>(fminf(fmaxf(middle + lean * bins_per_distance[cluster], 0.0f), static_cast<float>(bins - 1)));
}

/// grid: (row_slices, heads). Writes the rows' buckets and how many rows of the slice each bucket has.
template <Source kSource, int kWidth>
__global__ void __launch_bounds__(kAssignThreads, 2) assign_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.y));
  std::int64_t const slice_begin = static_cast<std::int64_t>(blockIdx.x) * kSliceRows;
  if (slice_begin >= h.count) return;
  extern __shared__ uint4 dynamic_smem[];
  AssignSmem<kWidth> const smem(reinterpret_cast<unsigned char*>(dynamic_smem), p.padded_clusters, p.bins);
  int const thread = static_cast<int>(threadIdx.x);
  std::int64_t const head_clusters = static_cast<std::int64_t>(h.index) * p.padded_clusters;

  load_origin(p, h, smem.origin);
  load_centroids<kWidth>(p.chained_means + head_clusters * kWidth, h.clusters, p.padded_clusters, smem.centroids);
  for (int i = thread; i < p.padded_clusters; i += kAssignThreads) smem.bins_per_distance[i] = p.bins_per_distance[head_clusters + i];
  for (int i = thread; i < p.num_buckets(); i += kAssignThreads) smem.bucket_rows[i] = 0;
  __syncthreads();

  constexpr int kWarpRows = kSliceRows / kAssignWarps;
  MmaLane const lane;
  int const pitch = AssignSmem<kWidth>::pitch(p.padded_clusters);
  float* const warp_distances = smem.distances + thread / kWarpLanes * kRowsPerMma * pitch;
  std::int64_t const first = slice_begin + thread / kWarpLanes * kWarpRows;
  std::int64_t const end = min(first + kWarpRows, h.count);
  auto const load = [&](std::int64_t row) { return load_row<kSource, kWidth>(p, h, min(row, h.count - 1), smem.origin); };

  RowPiece<kWidth> upper = load(first + lane.group);
  RowPiece<kWidth> lower = load(first + lane.group + 8);
  for (std::int64_t row = first; row < end; row += kRowsPerMma) {
    RowPiece<kWidth> const next_upper = load(row + kRowsPerMma + lane.group);
    RowPiece<kWidth> const next_lower = load(row + kRowsPerMma + lane.group + 8);
    Nearest nearest_upper, nearest_lower;
    find_nearest<kWidth>(upper, lower, smem.centroids, p.padded_clusters, nearest_upper, nearest_lower,
                         [&](int column, float2 up, float2 low) {
                           *reinterpret_cast<float2*>(warp_distances + lane.group * pitch + column) = up;
                           *reinterpret_cast<float2*>(warp_distances + (lane.group + 8) * pitch + column) = low;
                         });
    __syncwarp();
    // The first lane of a quad keeps the upper row, the second one the lower row.
    int const mine = lane.group + 8 * lane.quad;
    if (lane.quad < 2 && row + mine < end) {
      int const cluster = lane.quad == 0 ? nearest_upper.cluster : nearest_lower.cluster;
      int const bin = p.bins == 1 ? 0 : chain_bin(warp_distances + mine * pitch, smem.bins_per_distance, cluster, h.clusters, p.bins);
      int const bucket = cluster * p.bins + bin;
      p.buckets[h.first_row + row + mine] = static_cast<std::uint16_t>(bucket);
      atomicAdd(smem.bucket_rows + bucket, 1);  // counts are the same in any order
    }
    __syncwarp();
    upper = next_upper;
    lower = next_lower;
  }
  __syncthreads();
  std::int32_t* const counts = p.bucket_offsets + (static_cast<std::int64_t>(h.index) * p.row_slices + blockIdx.x) * p.num_buckets();
  for (int i = thread; i < p.num_buckets(); i += kAssignThreads) counts[i] = smem.bucket_rows[i];
}

}  // namespace vcattn::grouping::cuda
