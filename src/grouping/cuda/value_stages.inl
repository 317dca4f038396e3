// Body of one translation unit: the stages that read V, for one Source. See sources.cmake.

#include "grouping/cuda/assign.cuh"
#include "grouping/cuda/exchange.cuh"
#include "grouping/cuda/fit.cuh"
#include "grouping/cuda/launch_large.cuh"

namespace vcattn::grouping::cuda {

namespace {

template <Source kSource, int kWidth>
cudaError_t fit(Params const& p, Grid const& grid, cudaStream_t stream) {
  int const bytes = FitSmem<kWidth>::bytes(p.padded_clusters);
  return launch_large(fit_kernel<kSource, kWidth>, grid_of(kFitSlices, grid.heads), kFitThreads, bytes, stream, p);
}

template <Source kSource, int kWidth>
cudaError_t assign(Params const& p, Grid const& grid, cudaStream_t stream) {
  int const bytes = AssignSmem<kWidth>::bytes(p.padded_clusters, p.bins);
  return launch_large(assign_kernel<kSource, kWidth>, grid_of(grid.row_slices, grid.heads), kAssignThreads, bytes, stream, p);
}

template <Source kSource, int kWidth>
cudaError_t exchange(Params const& p, Grid const& grid, cudaStream_t stream) {
  int const bytes = static_cast<int>(sizeof(ExchangeSmem<kWidth>));
  return launch_large(exchange_kernel<kSource, kWidth>, grid_of(grid.windows, grid.heads), kExchangeThreads, bytes, stream, p);
}

}  // namespace

template <Source kSource>
cudaError_t load_value_stages() {
  return load_all(fit_kernel<kSource, 64>, fit_kernel<kSource, 128>, assign_kernel<kSource, 64>, assign_kernel<kSource, 128>,
                  exchange_kernel<kSource, 64>, exchange_kernel<kSource, 128>);
}

template <Source kSource>
cudaError_t launch_fit(Params const& p, Grid const& grid, cudaStream_t stream) {
  return p.width == 64 ? fit<kSource, 64>(p, grid, stream) : fit<kSource, 128>(p, grid, stream);
}
template <Source kSource>
cudaError_t launch_assign(Params const& p, Grid const& grid, cudaStream_t stream) {
  return p.width == 64 ? assign<kSource, 64>(p, grid, stream) : assign<kSource, 128>(p, grid, stream);
}
template <Source kSource>
cudaError_t launch_exchange(Params const& p, Grid const& grid, cudaStream_t stream) {
  return p.width == 64 ? exchange<kSource, 64>(p, grid, stream) : exchange<kSource, 128>(p, grid, stream);
}

template cudaError_t load_value_stages<Source::VCATTN_SOURCE>();
template cudaError_t launch_fit<Source::VCATTN_SOURCE>(Params const&, Grid const&, cudaStream_t);
template cudaError_t launch_assign<Source::VCATTN_SOURCE>(Params const&, Grid const&, cudaStream_t);
template cudaError_t launch_exchange<Source::VCATTN_SOURCE>(Params const&, Grid const&, cudaStream_t);

}  // namespace vcattn::grouping::cuda
