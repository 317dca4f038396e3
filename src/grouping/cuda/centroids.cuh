#pragma once

// Centroids as the right operand of a product, and the nearest one of a row. [EQ-KMEANS]

#include "grouping/cuda/value_rows.cuh"

namespace vcattn::grouping::cuda {

/// The centroids of a head in shared memory, rounded to BF16, with the norms of what they are rounded to: a row goes to the nearest of the
/// rounded ones. Padding has an infinite norm, so that no row goes there.
struct CentroidTile {
  Eight* rows;   // [padded_clusters][width]
  float* norms;  // [padded_clusters]

  template <int kWidth>
  static constexpr int bytes(int padded_clusters) {
    return padded_clusters * (2 * kWidth + static_cast<int>(sizeof(float)));
  }
};

template <int kWidth>
__device__ inline CentroidTile take_centroid_tile(unsigned char*& cursor, int padded_clusters) {
  auto* const rows = take<Eight>(cursor, padded_clusters * kWidth / 8);
  return {rows, take<float>(cursor, padded_clusters)};
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = kWarpLanes / 2; step >= 1; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// means: [padded_clusters][kWidth], global. One warp per centroid, several of them on the way at once; the caller waits for all warps.
template <int kWidth>
__device__ inline void load_centroids(float const* means, int clusters, int padded_clusters, CentroidTile tile) {
  constexpr int kInFlight = 4;
  int const lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int const warps = static_cast<int>(blockDim.x) / kWarpLanes;
  bool const has_channels = 4 * lane < kWidth;
  for (int first = static_cast<int>(threadIdx.x) / kWarpLanes; first < padded_clusters; first += kInFlight * warps) {
    float4 rows[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      int const row = min(first + i * warps, padded_clusters - 1);
      rows[i] = has_channels ? reinterpret_cast<float4 const*>(means + row * kWidth)[lane] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      Bf16Pair const low = __floats2bfloat162_rn(rows[i].x, rows[i].y);
      Bf16Pair const high = __floats2bfloat162_rn(rows[i].z, rows[i].w);
      float2 const a = __bfloat1622float2(low);
      float2 const b = __bfloat1622float2(high);
      float const norm = warp_sum((a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y));
      int const row = first + i * warps;
      if (row >= padded_clusters) break;
      if (has_channels) reinterpret_cast<uint2*>(tile.rows + piece_index<kWidth>(row, lane / 2))[lane % 2] = {bits_of(low), bits_of(high)};
      if (lane == 0) tile.norms[row] = row < clusters ? norm : INFINITY;
    }
  }
}

/// Nearest centroid so far; equal distances keep the lower index.
struct Nearest {
  float distance = INFINITY;
  int cluster = 0;

  /// Of a centroid behind those seen before.
  __device__ __forceinline__ void see(float other_distance, int other_cluster) {
    take_if(other_distance < distance, other_distance, other_cluster);
  }
  /// Of the four lanes that share a row.
  __device__ __forceinline__ void merge_quad() {
    for (int step = 1; step <= 2; step *= 2) {
      float const other_distance = __shfl_xor_sync(~0u, distance, step);
      int const other_cluster = __shfl_xor_sync(~0u, cluster, step);
      take_if(other_distance < distance || (other_distance == distance && other_cluster < cluster), other_distance, other_cluster);
    }
  }

 private:
  __device__ __forceinline__ void take_if(bool closer, float other_distance, int other_cluster) {
    distance = closer ? other_distance : distance;
    cluster = closer ? other_cluster : cluster;
  }
};

/// Nearest centroids of a warp's 16 rows. visit(column, upper, lower) gets the distances to centroids `column` and `column` + 1, less the
/// row's own norm: ||c||^2 - 2 x.c.
template <int kWidth, typename Visit>
__device__ __forceinline__ void find_nearest(RowPiece<kWidth> const& upper, RowPiece<kWidth> const& lower, CentroidTile tile,
                                             int padded_clusters, Nearest& nearest_upper, Nearest& nearest_lower, Visit&& visit) {
  MmaLane const lane;
  nearest_upper = nearest_lower = {};
#pragma unroll 1
  for (int first = 0; first < padded_clusters; first += 2 * kColumnsPerMma) {
    float products[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
      multiply_rows<kWidth>(upper, lower, rows_from<kWidth>(tile.rows, first + n * kColumnsPerMma), lane.group, products[n]);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      int const column = first + n * kColumnsPerMma + 2 * lane.quad;
      float2 const norms = *reinterpret_cast<float2 const*>(tile.norms + column);
      float2 const up = {__fmaf_rn(-2.0f, products[n][0], norms.x), __fmaf_rn(-2.0f, products[n][1], norms.y)};
      float2 const low = {__fmaf_rn(-2.0f, products[n][2], norms.x), __fmaf_rn(-2.0f, products[n][3], norms.y)};
      nearest_upper.see(up.x, column);
      nearest_upper.see(up.y, column + 1);
      nearest_lower.see(low.x, column);
      nearest_lower.see(low.y, column + 1);
      visit(column, up, low);
    }
  }
  nearest_upper.merge_quad();
  nearest_lower.merge_quad();
}

}  // namespace vcattn::grouping::cuda
