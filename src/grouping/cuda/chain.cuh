#pragma once

// Order of the clusters: greedy nearest neighbour from the centroid farthest from the origin, then reversals (2-opt). [EQ-CHAIN]

#include "core/config.hpp"
#include "grouping/cuda/centroids.cuh"

namespace vcattn::grouping::cuda {

inline constexpr int kChainThreads = 512;
inline constexpr int kChainWarps = kChainThreads / kWarpLanes;
static_assert(kMaxDeviceClusters <= kChainThreads, "a thread per cluster");
/// Rounding could let reversals go in circles; about one per cluster reaches a local optimum on real values.
inline constexpr int kMaxReversalsPerCluster = 4;

/// Squared distances of all pairs of centroids, each pair once.
struct PairDistances {
  float* values;

  static constexpr int size(int clusters) { return clusters * (clusters - 1) / 2; }
  __device__ float& of(int i, int j) const { return values[size(max(i, j)) + min(i, j)]; }
};

template <int kWidth>
struct ChainSmem {
  CentroidTile centroids;
  PairDistances distances;
  std::int32_t* path;     // [padded_clusters]
  std::uint64_t* lowest;  // [2][kChainWarps]

  static constexpr int bytes(int padded_clusters) {
    return 2 * kChainWarps * static_cast<int>(sizeof(std::uint64_t)) + CentroidTile::bytes<kWidth>(padded_clusters) +
           padded_clusters * static_cast<int>(sizeof(std::int32_t)) +
           PairDistances::size(padded_clusters) * static_cast<int>(sizeof(float));
  }
  __device__ ChainSmem(unsigned char* cursor, int padded_clusters) : lowest(take<std::uint64_t>(cursor, 2 * kChainWarps)) {
    centroids = take_centroid_tile<kWidth>(cursor, padded_clusters);
    path = take<std::int32_t>(cursor, padded_clusters);
    distances.values = take<float>(cursor, PairDistances::size(padded_clusters));
  }
};

/// Distances between the rounded centroids.
template <int kWidth>
__device__ inline void fill_distances(ChainSmem<kWidth> const& smem, int padded_clusters) {
  MmaLane const lane;
  for (int first = static_cast<int>(threadIdx.x) / kWarpLanes * kRowsPerMma; first < padded_clusters; first += kChainWarps * kRowsPerMma) {
    int const upper = first + lane.group;
    RowPiece<kWidth> const upper_row = tile_row<kWidth>(smem.centroids.rows, upper);
    RowPiece<kWidth> const lower_row = tile_row<kWidth>(smem.centroids.rows, upper + 8);
    for (int n = 0; n < padded_clusters; n += kColumnsPerMma) {
      float products[4];
      multiply_rows<kWidth>(upper_row, lower_row, rows_from<kWidth>(smem.centroids.rows, n), lane.group, products);
      for (int i = 0; i < 4; ++i) {
        int const row = upper + i / 2 * 8;
        int const column = n + 2 * lane.quad + i % 2;
        if (row > column)
          smem.distances.of(row, column) = fmaxf(smem.centroids.norms[row] + smem.centroids.norms[column] - 2.0f * products[i], 0.0f);
      }
    }
  }
}

/// Finds the lowest (number, index) of the block's threads; every thread gets it.
class BlockMinimum {
 public:
  __device__ explicit BlockMinimum(std::uint64_t* lowest) : lowest_(lowest) {}

  struct Found {
    std::uint32_t number;
    int index;
  };
  __device__ Found find(std::uint32_t number, std::uint32_t index) {
    std::uint32_t const least = __reduce_min_sync(~0u, number);
    std::uint32_t const least_index = __reduce_min_sync(~0u, number == least ? index : ~0u);
    std::uint64_t* const slots = lowest_ + round_ * kChainWarps;
    if (threadIdx.x % kWarpLanes == 0) slots[threadIdx.x / kWarpLanes] = static_cast<std::uint64_t>(least) << 32 | least_index;
    __syncthreads();
    std::uint64_t const of_warp = slots[threadIdx.x % kChainWarps];
    auto const number_of_warp = static_cast<std::uint32_t>(of_warp >> 32);
    std::uint32_t const lowest = __reduce_min_sync(~0u, number_of_warp);
    std::uint32_t const lowest_index = __reduce_min_sync(~0u, number_of_warp == lowest ? static_cast<std::uint32_t>(of_warp) : ~0u);
    round_ ^= 1;  // the next search must not overwrite what other threads still read
    return {lowest, static_cast<int>(lowest_index)};
  }

 private:
  std::uint64_t* lowest_;
  int round_ = 0;
};

inline constexpr std::uint32_t kNothing = ~0u;

template <int kWidth>
__device__ inline void greedy_chain(ChainSmem<kWidth> const& smem, int clusters, BlockMinimum& minimum) {
  int const cluster = static_cast<int>(threadIdx.x);
  bool left = cluster < clusters;
  std::uint32_t number = left ? ~core::f32_bits(smem.centroids.norms[cluster]) : kNothing;  // the largest norm first
  for (int position = 0; position < clusters; ++position) {
    int const next = minimum.find(number, static_cast<std::uint32_t>(cluster)).index;
    if (cluster == next) left = false;
    if (cluster == 0) smem.path[position] = next;
    number = left ? core::f32_bits(smem.distances.of(cluster, next)) : kNothing;
  }
  __syncthreads();
}

/// Reverses the part of the path whose reversal shortens it most, while there is one. A reversal is known by first * 2^16 + last.
template <int kWidth>
__device__ inline void improve_by_reversals(ChainSmem<kWidth> const& smem, int clusters, BlockMinimum& minimum) {
  constexpr int kFirstShift = 16;
  std::int32_t* const path = smem.path;
  PairDistances const& distances = smem.distances;
  int const thread = static_cast<int>(threadIdx.x);
  for (int reversals = 0; reversals < kMaxReversalsPerCluster * clusters; ++reversals) {
    float best = 0.0f;
    int best_reversal = 0;
    for (int first = thread / kWarpLanes; first + 1 < clusters; first += kChainWarps) {
      for (int last = first + 1 + thread % kWarpLanes; last < clusters; last += kWarpLanes) {
        float added = 0.0f;
        if (first > 0) added += distances.of(path[first - 1], path[last]) - distances.of(path[first - 1], path[first]);
        if (last + 1 < clusters) added += distances.of(path[first], path[last + 1]) - distances.of(path[last], path[last + 1]);
        best_reversal = added < best ? first << kFirstShift | last : best_reversal;
        best = fminf(added, best);
      }
    }
    // Below zero the bits ascend with the absolute value.
    auto const found = minimum.find(best < 0.0f ? ~core::f32_bits(best) : kNothing, static_cast<std::uint32_t>(best_reversal));
    if (found.number == kNothing) return;
    int const left = (found.index >> kFirstShift) + thread;
    int const right = (found.index & ((1 << kFirstShift) - 1)) - thread;
    if (left < right) {
      std::int32_t const kept = path[left];
      path[left] = path[right];
      path[right] = kept;
    }
    __syncthreads();
  }
}

/// grid: heads. Writes the centroids in the order of the chain, and what turns distances into bins.
template <int kWidth>
__global__ void __launch_bounds__(kChainThreads) chain_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.x));
  extern __shared__ uint4 dynamic_smem[];
  ChainSmem<kWidth> const smem(reinterpret_cast<unsigned char*>(dynamic_smem), p.padded_clusters);
  int const thread = static_cast<int>(threadIdx.x);
  std::int64_t const head_clusters = static_cast<std::int64_t>(h.index) * p.padded_clusters;
  float const* const means = p.means + head_clusters * kWidth;

  load_centroids<kWidth>(means, h.clusters, p.padded_clusters, smem.centroids);
  if (thread < p.padded_clusters) smem.path[thread] = thread;
  __syncthreads();
  fill_distances(smem, p.padded_clusters);
  __syncthreads();
  if (p.chained != 0) {
    BlockMinimum minimum(smem.lowest);
    greedy_chain(smem, h.clusters, minimum);
    improve_by_reversals(smem, h.clusters, minimum);
  }

  for (int i = thread; i < p.padded_clusters * kWidth; i += kChainThreads) {
    int const position = i / kWidth;
    int const channel = i % kWidth;
    bool const used = position < h.clusters;
    float const mean = used ? means[smem.path[position] * kWidth + channel] : 0.0f;
    p.chained_means[head_clusters * kWidth + i] = mean;
    if (position >= p.clusters || channel >= p.head_dim) continue;
    float const origin = core::f32_from_bits(static_cast<std::uint32_t>(p.origin[h.index * kWidth + channel]) << 16);
    p.centroids[(static_cast<std::int64_t>(h.index) * p.clusters + position) * p.head_dim + channel] = used ? mean + origin : 0.0f;
  }
  if (thread < p.padded_clusters) {
    int const before = smem.path[max(thread - 1, 0)];
    int const after = smem.path[min(thread + 1, max(h.clusters - 1, 0))];
    float const apart = thread < h.clusters && before != after ? smem.distances.of(before, after) : 0.0f;
    p.bins_per_distance[head_clusters + thread] = apart > 0.0f ? 0.5f * static_cast<float>(p.bins) / apart : 0.0f;
  }
}

}  // namespace vcattn::grouping::cuda
