#pragma once

// The one place that starts kernels.

#include <cuda_runtime.h>

namespace vcattn::device {

/// Launches kernel(arguments...) on `stream`; asynchronous. Returns what the runtime says of the launch, not of the kernel's run.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace vcattn::device
