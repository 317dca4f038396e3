#pragma once

// mbarriers and the bulk copy engine (TMA), over cuda::ptx.

#include <cuda.h>

#include <cstdint>
#include <cuda/ptx>

namespace vcattn::ptx {

using Barrier = std::uint64_t;

__device__ __forceinline__ void barrier_init(Barrier& barrier, std::uint32_t arrivals) { cuda::ptx::mbarrier_init(&barrier, arrivals); }

/// Makes freshly initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() { cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster); }

__device__ __forceinline__ void barrier_arrive(Barrier& barrier) { (void)cuda::ptx::mbarrier_arrive(&barrier); }

/// Arrives and expects `bytes` of copies on top.
__device__ __forceinline__ void barrier_arrive_expect(Barrier& barrier, std::uint32_t bytes) {
  (void)cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared, &barrier, bytes);
}

/// Waits for the end of the phase of that parity.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, std::uint32_t parity) {
  while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, parity)) {
  }
}

/// Loads a box of a 2-D tensor at (column, row); elements outside the tensor arrive as zeros.
__device__ __forceinline__ void copy_box(void* smem, CUtensorMap const& map, Barrier& barrier, std::int32_t column, std::int32_t row) {
  std::int32_t const coordinates[2] = {column, row};
  cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global, smem, &map, coordinates, &barrier);
}

/// Loads `bytes` contiguous bytes; addresses and size multiples of 16.
__device__ __forceinline__ void copy_bytes(void* smem, void const* gmem, std::uint32_t bytes, Barrier& barrier) {
  cuda::ptx::cp_async_bulk(cuda::ptx::space_cluster, cuda::ptx::space_global, smem, gmem, bytes, &barrier);
}

}  // namespace vcattn::ptx
