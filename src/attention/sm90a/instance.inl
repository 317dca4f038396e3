// Body of one translation unit: an instance of launch_instance(). See sources.cmake.

#include "attention/sm90a/instances.hpp"
#include "attention/sm90a/kernel.cuh"
#include "device/launch.cuh"

namespace vcattn::attention_sm90a {

template <class C>
cudaError_t load_instance() {
  return cudaFuncSetAttribute(attention_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem_bytes<C>()));
}

template <class C>
cudaError_t launch_instance(KernelParams const& params, unsigned ctas, cudaStream_t stream) {
  cudaError_t const status = load_instance<C>();
  if (status != cudaSuccess) return status;
  return device::launch(attention_kernel<C>, dim3(ctas), dim3(C::kThreads), smem_bytes<C>(), stream, params);
}

using Config = TileConfig<Scores::VCATTN_SCORES, Probabilities::VCATTN_PROBABILITIES, VCATTN_HEAD_DIM>;
template cudaError_t load_instance<Config>();
template cudaError_t launch_instance<Config>(KernelParams const&, unsigned, cudaStream_t);

}  // namespace vcattn::attention_sm90a
