#pragma once

// CUDA status codes to Error.

#include <cuda_runtime_api.h>

#include <string>

#include "vcattn/types.hpp"

namespace vcattn::device::cuda {

/// Throws unless status is cudaSuccess. `what` names the call.
inline void check(cudaError_t status, char const* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // the next call must not report it again
  ErrorCode const code = status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::internal;
  throw Error(code, std::string(what) + " failed: " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

}  // namespace vcattn::device::cuda
