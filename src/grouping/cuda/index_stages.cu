// The stages that work on centroids and indices.

#include "grouping/cuda/bucket_sort.cuh"
#include "grouping/cuda/centroid_updates.cuh"
#include "grouping/cuda/chain.cuh"
#include "grouping/cuda/launch_large.cuh"

namespace vcattn::grouping::cuda {

namespace {

template <int kWidth>
cudaError_t chain(Params const& p, Grid const& grid, cudaStream_t stream) {
  return launch_large(chain_kernel<kWidth>, grid_of(grid.heads, 1), kChainThreads, ChainSmem<kWidth>::bytes(p.padded_clusters), stream, p);
}

}  // namespace

cudaError_t load_index_stages() {
  return load_all(start_kernel<64>, start_kernel<128>, update_kernel<64>, update_kernel<128>, chain_kernel<64>, chain_kernel<128>,
                  offset_kernel, scatter_kernel);
}

cudaError_t launch_start(Params const& p, Grid const& grid, cudaStream_t stream) {
  return launch_large(p.width == 64 ? start_kernel<64> : start_kernel<128>, grid_of(grid.heads, 1), p.width, 0, stream, p);
}

cudaError_t launch_update(Params const& p, Grid const& grid, cudaStream_t stream) {
  return launch_large(p.width == 64 ? update_kernel<64> : update_kernel<128>, grid_of(p.clusters, grid.heads), p.width, 0, stream, p);
}

cudaError_t launch_chain(Params const& p, Grid const& grid, cudaStream_t stream) {
  return p.width == 64 ? chain<64>(p, grid, stream) : chain<128>(p, grid, stream);
}

cudaError_t launch_offsets(Params const& p, Grid const& grid, cudaStream_t stream) {
  return launch_large(offset_kernel, grid_of(grid.heads, 1), kScanThreads, 0, stream, p);
}

cudaError_t launch_scatter(Params const& p, Grid const& grid, cudaStream_t stream) {
  int const bytes = kScatterWarps * p.num_buckets() * static_cast<int>(sizeof(std::int32_t));
  return launch_large(scatter_kernel, grid_of(grid.row_slices, grid.heads), kScatterThreads, bytes, stream, p);
}

}  // namespace vcattn::grouping::cuda
