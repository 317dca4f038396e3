#pragma once

// Kernels whose dynamic shared memory may exceed what a launch gets unasked.

#include "device/launch.cuh"
#include "grouping/cuda/stages.hpp"

namespace vcattn::grouping::cuda {

inline cudaError_t launch_large(void (*kernel)(Params), dim3 grid, int threads, int smem_bytes, cudaStream_t stream, Params const& p) {
  cudaError_t const status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  if (status != cudaSuccess) return status;
  return device::launch(kernel, grid, dim3(static_cast<unsigned>(threads)), static_cast<std::size_t>(smem_bytes), stream, p);
}

template <typename... Kernels>
cudaError_t load_all(Kernels... kernels) {
  cudaFuncAttributes attributes;
  cudaError_t status = cudaSuccess;
  ((status = status == cudaSuccess ? cudaFuncGetAttributes(&attributes, kernels) : status), ...);
  return status;
}

inline dim3 grid_of(std::int32_t x, std::int32_t y) { return {static_cast<unsigned>(x), static_cast<unsigned>(y)}; }

}  // namespace vcattn::grouping::cuda
