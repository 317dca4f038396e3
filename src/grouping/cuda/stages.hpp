#pragma once

// The stages of grouping, each one kernel. The ones that read V are compiled once per way in which it lies in memory.

#include <cuda_runtime_api.h>

#include "grouping/cuda/params.hpp"

namespace vcattn::grouping::cuda {

/// Sizes of the grids.
struct Grid {
  std::int32_t heads = 0;
  std::int32_t row_slices = 0;  // of kSliceRows rows
  std::int32_t windows = 0;     // of exchange
};

/// Load the kernels of a translation unit into the current context.
cudaError_t load_index_stages();
template <Source kSource>
cudaError_t load_value_stages();

cudaError_t launch_start(Params const& p, Grid const& grid, cudaStream_t stream);
template <Source kSource>
cudaError_t launch_fit(Params const& p, Grid const& grid, cudaStream_t stream);
cudaError_t launch_update(Params const& p, Grid const& grid, cudaStream_t stream);
cudaError_t launch_chain(Params const& p, Grid const& grid, cudaStream_t stream);
template <Source kSource>
cudaError_t launch_assign(Params const& p, Grid const& grid, cudaStream_t stream);
cudaError_t launch_offsets(Params const& p, Grid const& grid, cudaStream_t stream);
cudaError_t launch_scatter(Params const& p, Grid const& grid, cudaStream_t stream);
template <Source kSource>
cudaError_t launch_exchange(Params const& p, Grid const& grid, cudaStream_t stream);

}  // namespace vcattn::grouping::cuda
