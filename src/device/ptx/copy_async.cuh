#pragma once

// Asynchronous copies of 16 bytes by single threads (cp.async). A thread sees its own after waiting, others see them after a barrier on
// top.

#include <cstdint>

namespace vcattn::ptx {

/// Copies from global memory around the L1 cache; writes zeros and reads nothing where not `there`.
__device__ __forceinline__ void copy_async_16(void* smem, void const* gmem, bool there) {
  auto const to = static_cast<std::uint32_t>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(gmem), "r"(there ? 16 : 0) : "memory");
}
/// Copies 4 bytes.
__device__ __forceinline__ void copy_async_4(void* smem, void const* gmem) {
  auto const to = static_cast<std::uint32_t>(__cvta_generic_to_shared(smem));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(gmem) : "memory");
}
__device__ __forceinline__ void commit_async_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until no more than kPending of the committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_async_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace vcattn::ptx
