#pragma once

// The kernel: roles of the warpgroups.
//
// | warpgroup             | role                                   | registers per thread |
// |-----------------------|----------------------------------------|----------------------|
// | 0 .. kConsumers - 1   | scores, probabilities, output          | 160 or 232           |
// | kConsumers            | warp 0 feeds the rings, the rest exits | 32 or 40             |

#include "attention/sm90a/consumer.cuh"
#include "attention/sm90a/producer.cuh"
#include "device/ptx/warpgroup.cuh"

namespace vcattn::attention_sm90a {

template <class C>
__device__ void init_barriers(Barriers<C>& bar) {
  constexpr std::uint32_t kWarps = 4;
  for (int w = 0; w < C::kConsumers; ++w) {
    ptx::barrier_init(bar.q_full[w], 1);
    ptx::barrier_init(bar.q_empty[w], kWarps);
  }
  for (int s = 0; s < C::kStages; ++s) {
    ptx::barrier_init(bar.kv_full[s], 1);
    ptx::barrier_init(bar.kv_empty[s], kWarps * C::kConsumers);
  }
  for (int s = 0; s < C::kMeanStages; ++s) {
    ptx::barrier_init(bar.mean_full[s], 1);
    ptx::barrier_init(bar.mean_empty[s], kWarps * C::kConsumers);
  }
  ptx::barrier_init_fence();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) attention_kernel(__grid_constant__ KernelParams const p) {
  extern __shared__ __align__(kSmemAlignment) std::uint8_t dynamic_smem[];
  auto& smem = *reinterpret_cast<SmemLayout<C>*>(dynamic_smem);
  if (threadIdx.x == 0) {
    if (ptx::smem_address(dynamic_smem) % kSmemAlignment != 0) __trap();  // the swizzle patterns would not match the descriptors
    init_barriers<C>(smem.barriers);
  }
  if (threadIdx.x < 32) {
    LastWave const last_wave = plan_last_wave<C>(p, gridDim.x);
    if (threadIdx.x == 0) smem.last_wave = last_wave;
  }
  __syncthreads();

  // The same for a whole warp, which the compiler cannot see by itself.
  int const warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroupThreads, 0);
  if (warpgroup == C::kConsumers) {
    ptx::shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x / 32 % 4 == 0) Producer<C>(p, smem).run();
  } else {
    ptx::grow_registers<C::kConsumerRegisters>();
    Consumer<C>(p, smem, warpgroup).run();
  }
}

}  // namespace vcattn::attention_sm90a
