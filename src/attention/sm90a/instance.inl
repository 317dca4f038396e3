// Body of one translation unit: an instance of launch_instance(). See sources.cmake.

#include "attention/sm90a/instances.hpp"
#include "attention/sm90a/kernel.cuh"
#include "attention/sm90a/split.cuh"
#include "device/launch.cuh"

namespace vcattn::attention_sm90a {

template <class C>
cudaError_t load_instance() {
  cudaFuncAttributes attributes{};
  cudaError_t const status = cudaFuncGetAttributes(&attributes, join_parts_kernel<C>);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(attention_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem_bytes<C>()));
}

template <class C>
cudaError_t launch_instance(KernelParams const& params, unsigned ctas, cudaStream_t stream) {
  cudaError_t const status = device::launch(attention_kernel<C>, dim3(ctas), dim3(C::kThreads), smem_bytes<C>(), stream, params);
  if (status != cudaSuccess || params.parts == nullptr) return status;
  return device::launch(join_parts_kernel<C>, dim3(ctas, C::kConsumers), dim3(kWarpgroupThreads), 0, stream, params);
}

using Config = TileConfig<Scores::VCATTN_SCORES, Probabilities::VCATTN_PROBABILITIES, VCATTN_HEAD_DIM>;
template cudaError_t load_instance<Config>();
template cudaError_t launch_instance<Config>(KernelParams const&, unsigned, cudaStream_t);

}  // namespace vcattn::attention_sm90a
