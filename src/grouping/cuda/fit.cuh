#pragma once

// One Lloyd step on a sample of the rows: sums of the rows next to each centroid. [EQ-KMEANS]

#include "grouping/cuda/centroids.cuh"

namespace vcattn::grouping::cuda {

inline constexpr int kFitThreads = 256;
inline constexpr int kFitWarps = kFitThreads / kWarpLanes;
static_assert(kFitWarps * kRowsPerMma == kFitTileRows);

/// Every step-th row.
struct Sample {
  std::int64_t step, count;

  __device__ explicit Sample(Head const& h) {
    std::int64_t const wanted = static_cast<std::int64_t>(h.clusters) * kSampleRowsPerCluster;
    step = h.count > wanted ? h.count / wanted : 1;
    count = (h.count + step - 1) / step;
  }
};

template <int kWidth>
struct FitSmem {
  CentroidTile centroids;
  Eight* rows;           // [kFitTileRows][kWidth]
  float* sums;           // [padded_clusters][kWidth]
  std::int32_t* counts;  // [padded_clusters]
  std::int32_t* labels;  // [kFitTileRows], -1: no row
  Bf16* origin;          // [kWidth]

  static constexpr int bytes(int padded_clusters) {
    return CentroidTile::bytes<kWidth>(padded_clusters) + 2 * kFitTileRows * kWidth +
           padded_clusters * (kWidth + 1) * static_cast<int>(sizeof(float)) + kFitTileRows * static_cast<int>(sizeof(std::int32_t)) +
           2 * kWidth;
  }
  __device__ FitSmem(unsigned char* cursor, int padded_clusters)
      : centroids(take_centroid_tile<kWidth>(cursor, padded_clusters)),
        rows(take<Eight>(cursor, kFitTileRows * kWidth / 8)),
        sums(take<float>(cursor, padded_clusters * kWidth)),
        counts(take<std::int32_t>(cursor, padded_clusters)),
        labels(take<std::int32_t>(cursor, kFitTileRows)),
        origin(take<Bf16>(cursor, kWidth)) {}
};

/// Adds the tile's rows to the sums of their clusters. Every sum has one owner, a warp per cluster modulo their number and a lane per four
/// channels, that adds in ascending row order.
template <int kWidth>
__device__ inline void add_rows_of_tile(FitSmem<kWidth> const& smem) {
  int const warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int const lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  for (int first = 0; first < kFitTileRows; first += kWarpLanes) {
    int const label = smem.labels[first + lane];
    unsigned mine = __ballot_sync(~0u, label >= 0 && label % kFitWarps == warp);
    while (mine != 0) {
      int const source = __ffs(static_cast<int>(mine)) - 1;
      mine &= mine - 1;
      int const cluster = __shfl_sync(~0u, label, source);
      if (4 * lane < kWidth) {
        uint2 const x = reinterpret_cast<uint2 const*>(smem.rows + piece_index<kWidth>(first + source, lane / 2))[lane % 2];
        float2 const low = __bfloat1622float2(bf16_pair(x.x));
        float2 const high = __bfloat1622float2(bf16_pair(x.y));
        float4& sum = reinterpret_cast<float4*>(smem.sums + cluster * kWidth)[lane];
        sum = {sum.x + low.x, sum.y + low.y, sum.z + high.x, sum.w + high.y};
      }
      if (lane == 0) ++smem.counts[cluster];
    }
  }
}

/// grid: (kFitSlices, heads). Writes sums and counts of one slice of the sample.
template <Source kSource, int kWidth>
__global__ void __launch_bounds__(kFitThreads) fit_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.y));
  if (h.count == 0) return;
  extern __shared__ uint4 dynamic_smem[];
  FitSmem<kWidth> const smem(reinterpret_cast<unsigned char*>(dynamic_smem), p.padded_clusters);
  int const thread = static_cast<int>(threadIdx.x);
  std::int64_t const head_clusters = static_cast<std::int64_t>(h.index) * p.padded_clusters;

  load_origin(p, h, smem.origin);
  load_centroids<kWidth>(p.means + head_clusters * kWidth, h.clusters, p.padded_clusters, smem.centroids);
  for (int i = thread; i < p.padded_clusters * kWidth; i += kFitThreads) smem.sums[i] = 0.0f;
  for (int i = thread; i < p.padded_clusters; i += kFitThreads) smem.counts[i] = 0;
  __syncthreads();

  Sample const sample(h);
  std::int64_t const tiles = (sample.count + kFitTileRows - 1) / kFitTileRows;
  std::int64_t const tiles_per_slice = (tiles + kFitSlices - 1) / kFitSlices;
  std::int64_t const first_tile = blockIdx.x * tiles_per_slice;
  std::int64_t const end_tile = min(first_tile + tiles_per_slice, tiles);
  MmaLane const lane;
  int const upper_row = thread / kWarpLanes * kRowsPerMma + lane.group;
  int const lower_row = upper_row + 8;
  // A tile takes rows from all over the sample: neighbours are alike, and the sums of one cluster are the work of one warp. Rows behind the
  // sample's end load its last one and get no label.
  auto const sample_row = [&](std::int64_t tile, int row_of_tile) { return row_of_tile * tiles + tile; };
  auto const load = [&](std::int64_t tile, int row_of_tile) {
    std::int64_t const i = min(sample_row(tile, row_of_tile), sample.count - 1);
    return load_row<kSource, kWidth>(p, h, i * sample.step, smem.origin);
  };

  RowPiece<kWidth> upper = load(first_tile, upper_row);
  RowPiece<kWidth> lower = load(first_tile, lower_row);
  for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
    store_row<kWidth>(smem.rows, upper_row, upper);
    store_row<kWidth>(smem.rows, lower_row, lower);
    Nearest nearest_upper, nearest_lower;
    find_nearest<kWidth>(upper, lower, smem.centroids, p.padded_clusters, nearest_upper, nearest_lower, [](int, float2, float2) {});
    if (lane.quad == 0) {
      smem.labels[upper_row] = sample_row(tile, upper_row) < sample.count ? nearest_upper.cluster : -1;
      smem.labels[lower_row] = sample_row(tile, lower_row) < sample.count ? nearest_lower.cluster : -1;
    }
    __syncthreads();
    upper = load(tile + 1, upper_row);  // on the way while the sums are made
    lower = load(tile + 1, lower_row);
    add_rows_of_tile(smem);
    __syncthreads();
  }

  std::int64_t const slice_clusters = (static_cast<std::int64_t>(h.index) * kFitSlices + blockIdx.x) * p.padded_clusters;
  for (int i = thread; i < p.padded_clusters * kWidth; i += kFitThreads) p.sums[slice_clusters * kWidth + i] = smem.sums[i];
  for (int i = thread; i < p.padded_clusters; i += kFitThreads) p.counts[slice_clusters + i] = smem.counts[i];
}

}  // namespace vcattn::grouping::cuda
