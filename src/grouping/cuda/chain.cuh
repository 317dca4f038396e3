#pragma once

// Order of the clusters: greedy nearest neighbour from the centroid farthest from the origin, or the stored order; then reversals (2-opt).
// [EQ-CHAIN]

#include "core/config.hpp"
#include "grouping/cuda/centroids.cuh"
#include "grouping/reversals.hpp"

namespace vcattn::grouping::cuda {

inline constexpr int kChainThreads = 512;
inline constexpr int kChainWarps = kChainThreads / kWarpLanes;
static_assert(kMaxDeviceClusters <= kChainThreads, "a thread per cluster");
/// Neighbouring positions of the path that a lane looks at.
inline constexpr int kLanePositions = kMaxDeviceClusters / kWarpLanes;
static_assert(kLanePositions * kWarpLanes == kMaxDeviceClusters);

/// Squared distances of all pairs of centroids, each pair once.
struct PairDistances {
  float* values;

  /// A cluster and where the distances to those up to it begin.
  struct Row {
    int cluster, begin;

    __device__ explicit Row(int cluster_ = 0) : cluster(cluster_), begin(size(cluster_)) {}
  };
  static constexpr int size(int clusters) { return clusters * (clusters + 1) / 2; }
  /// In the row of the larger one, whose sum here is the larger one too.
  __device__ float& of(Row i, Row j) const { return values[max(i.begin + j.cluster, j.begin + i.cluster)]; }
  __device__ float& of(int i, int j) const { return of(Row(i), Row(j)); }
};

template <int kWidth>
struct ChainSmem {
  CentroidTile centroids;
  PairDistances distances;
  std::int32_t* path;        // [-1..padded_clusters], the end cluster before and behind it
  std::uint64_t* lowest;     // [2][kChainWarps]
  std::uint64_t* reversals;  // [padded_clusters]: the best one from every position on

  static constexpr int bytes(int padded_clusters) {
    return (2 * kChainWarps + padded_clusters) * static_cast<int>(sizeof(std::uint64_t)) + CentroidTile::bytes<kWidth>(padded_clusters) +
           (padded_clusters + 2) * static_cast<int>(sizeof(std::int32_t)) +
           PairDistances::size(padded_clusters + 1) * static_cast<int>(sizeof(float));
  }
  __device__ ChainSmem(unsigned char* cursor, int padded_clusters)
      : lowest(take<std::uint64_t>(cursor, 2 * kChainWarps)), reversals(take<std::uint64_t>(cursor, padded_clusters)) {
    centroids = take_centroid_tile<kWidth>(cursor, padded_clusters);
    path = take<std::int32_t>(cursor, padded_clusters + 2) + 1;
    distances.values = take<float>(cursor, PairDistances::size(padded_clusters + 1));
  }
};

/// Distances between the rounded centroids. The end cluster, number padded_clusters, is at distance 0 from all: it stands for what a path's
/// ends do not have.
template <int kWidth>
__device__ inline void fill_distances(ChainSmem<kWidth> const& smem, int padded_clusters) {
  for (int i = static_cast<int>(threadIdx.x); i <= padded_clusters; i += kChainThreads) smem.distances.of(padded_clusters, i) = 0.0f;
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
        if (row >= column)
          smem.distances.of(row, column) = fmaxf(smem.centroids.norms[row] + smem.centroids.norms[column] - 2.0f * products[i], 0.0f);
      }
    }
  }
}

inline constexpr std::uint32_t kNothing = ~0u;

/// A number whose order counts, and an index that decides between equal ones.
__device__ inline std::uint64_t ranked(std::uint32_t number, std::uint32_t index) {
  return static_cast<std::uint64_t>(number) << 32 | index;
}
__device__ inline std::uint32_t number_of(std::uint64_t rank) { return static_cast<std::uint32_t>(rank >> 32); }
__device__ inline std::uint32_t index_of(std::uint64_t rank) { return static_cast<std::uint32_t>(rank); }

/// The lowest of a warp's; every lane gets it.
__device__ inline std::uint64_t warp_minimum(std::uint64_t rank) {
  std::uint32_t const number = __reduce_min_sync(~0u, number_of(rank));
  return ranked(number, __reduce_min_sync(~0u, number_of(rank) == number ? index_of(rank) : ~0u));
}

/// Finds the lowest of the block's threads; every thread gets it.
class BlockMinimum {
 public:
  __device__ explicit BlockMinimum(std::uint64_t* lowest) : lowest_(lowest) {}

  __device__ std::uint64_t find(std::uint64_t rank) {
    std::uint64_t const of_warp = warp_minimum(rank);
    std::uint64_t* const slots = lowest_ + round_ * kChainWarps;
    if (threadIdx.x % kWarpLanes == 0) slots[threadIdx.x / kWarpLanes] = of_warp;
    __syncthreads();
    round_ ^= 1;  // the next search must not overwrite what other threads still read
    return warp_minimum(slots[threadIdx.x % kChainWarps]);
  }

 private:
  std::uint64_t* lowest_;
  int round_ = 0;
};

template <int kWidth>
__device__ inline void greedy_chain(ChainSmem<kWidth> const& smem, int clusters, BlockMinimum& minimum) {
  int const cluster = static_cast<int>(threadIdx.x);
  bool left = cluster < clusters;
  std::uint32_t number = left ? ~core::f32_bits(smem.centroids.norms[cluster]) : kNothing;  // the largest norm first
  for (int position = 0; position < clusters; ++position) {
    int const next = static_cast<int>(index_of(minimum.find(ranked(number, static_cast<std::uint32_t>(cluster)))));
    if (cluster == next) left = false;
    if (cluster == 0) smem.path[position] = next;
    number = left ? core::f32_bits(smem.distances.of(cluster, next)) : kNothing;
  }
  __syncthreads();
}

/// A part of the path as an index.
inline constexpr int kFirstShift = 16;
__device__ inline std::uint32_t packed(PathPart part) { return static_cast<std::uint32_t>(part.first << kFirstShift | part.last); }
__device__ inline PathPart unpacked(std::uint32_t bits) {
  return {static_cast<std::int32_t>(bits >> kFirstShift), static_cast<std::int32_t>(bits & ((1u << kFirstShift) - 1))};
}

/// What a lane sees of the path: kLanePositions positions as the last ones of reversals that begin at `begin` or behind it.
class LastPositions {
 public:
  __device__ LastPositions(PairDistances distances, std::int32_t const* path, int begin, int clusters, int end_cluster)
      : distances_(distances), first_position_(static_cast<int>(threadIdx.x) % kWarpLanes * kLanePositions) {
#pragma unroll
    for (int i = 0; i < kLanePositions; ++i) {
      int const last = first_position_ + i;
      bool const used = begin < last && last < clusters;
      clusters_[i] = PairDistances::Row(used ? path[last] : end_cluster);
      edges_[i] = used ? distances.of(clusters_[i], PairDistances::Row(path[last + 1])) : -INFINITY;  // no reversal ends here
    }
  }

  /// Distances from a cluster to those at the lane's positions and the next one.
  struct Distances {
    float to[kLanePositions + 1];
  };
  __device__ Distances from(PairDistances::Row cluster) const {
    Distances distances;
#pragma unroll
    for (int i = 0; i < kLanePositions; ++i) distances.to[i] = distances_.of(cluster, clusters_[i]);
    float const next = __shfl_down_sync(~0u, distances.to[0], 1);
    distances.to[kLanePositions] = first_position_ + kLanePositions < kMaxDeviceClusters ? next : 0.0f;
    return distances;
  }

  /// The warp's best reversal from `first` on.
  __device__ std::uint64_t best_reversal(int first, float edge_before, Distances const& before, Distances const& from_first) const {
    float best = 0.0f;
    int best_index = 0;
#pragma unroll
    for (int i = 0; i < kLanePositions; ++i) {
      float const added = (before.to[i] - edge_before) + (from_first.to[i + 1] - edges_[i]);
      bool const better = first - first_position_ < i && added < best;
      best = better ? added : best;
      best_index = better ? i : best_index;
    }
    // Below zero the bits ascend with the absolute value.
    return warp_minimum(ranked(best < 0.0f ? ~core::f32_bits(best) : kNothing, packed({first, first_position_ + best_index})));
  }

 private:
  PairDistances distances_;
  int first_position_;
  PairDistances::Row clusters_[kLanePositions];
  float edges_[kLanePositions];  // to the next position
};

/// The best reversal from every position on. A warp takes neighbouring positions: the distances of one are needed again at the next.
template <int kWidth>
__device__ inline void find_reversals(ChainSmem<kWidth> const& smem, int clusters, int end_cluster) {
  int const positions = (clusters + kChainWarps - 1) / kChainWarps;
  int const begin = static_cast<int>(threadIdx.x) / kWarpLanes * positions;
  int const end = min(begin + positions, clusters - 1);
  if (begin >= end) return;
  LastPositions const lasts(smem.distances, smem.path, begin, clusters, end_cluster);
  PairDistances::Row cluster_before(smem.path[begin - 1]);
  auto before = lasts.from(cluster_before);
  for (int first = begin; first < end; ++first) {
    PairDistances::Row const cluster(smem.path[first]);
    auto const from_first = lasts.from(cluster);
    std::uint64_t const best = lasts.best_reversal(first, smem.distances.of(cluster_before, cluster), before, from_first);
    if (threadIdx.x % kWarpLanes == 0) smem.reversals[first] = best;
    cluster_before = cluster;
    before = from_first;
  }
}

/// Each scan finds the best reversal from every position on and makes those that can be made together, best first.
template <int kWidth>
__device__ inline void improve_by_reversals(ChainSmem<kWidth> const& smem, int clusters, int end_cluster, BlockMinimum& minimum) {
  int const thread = static_cast<int>(threadIdx.x);
  for (int scan = 0; scan < kMaxChainScans; ++scan) {
    find_reversals(smem, clusters, end_cluster);
    __syncthreads();
    std::uint64_t const own = thread + 1 < clusters ? smem.reversals[thread] : ranked(kNothing, 0);
    std::uint32_t number = number_of(own);
    PathPart part = unpacked(index_of(own));
    bool improved = false;
    for (;;) {
      std::uint64_t const best = minimum.find(ranked(number, packed(part)));
      if (number_of(best) == kNothing) break;
      PathPart const done = unpacked(index_of(best));
      int const left = done.first + thread;
      int const right = done.last - thread;
      if (left < right) {
        std::int32_t const kept = smem.path[left];
        smem.path[left] = smem.path[right];
        smem.path[right] = kept;
      }
      if (!survives_reversal(part, done)) number = kNothing;
      improved = true;
    }
    if (!improved) return;
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
  if (thread < p.padded_clusters) smem.path[thread] = thread < h.clusters ? thread : p.padded_clusters;
  if (thread == 0) smem.path[-1] = smem.path[p.padded_clusters] = p.padded_clusters;
  __syncthreads();
  fill_distances(smem, p.padded_clusters);
  __syncthreads();
  if (p.chained != 0) {
    BlockMinimum minimum(smem.lowest);
    if (p.warm == 0) greedy_chain(smem, h.clusters, minimum);
    improve_by_reversals(smem, h.clusters, p.padded_clusters, minimum);
  }

#pragma unroll 8
  for (int i = thread; i < p.padded_clusters * kWidth; i += kChainThreads) {
    int const position = i / kWidth;
    int const channel = i % kWidth;
    bool const used = position < h.clusters;
    float const mean = used ? __ldg(means + smem.path[position] * kWidth + channel) : 0.0f;
    p.chained_means[head_clusters * kWidth + i] = mean;
    if (position >= p.clusters || channel >= p.head_dim) continue;
    float const origin = core::f32_from_bits(static_cast<std::uint32_t>(__ldg(p.origin + h.index * kWidth + channel)) << 16);
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
