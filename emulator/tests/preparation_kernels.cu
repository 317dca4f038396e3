// The kernels that prepare FP32 tensors of 64 channels for vc8 with nearest rounding, for planted faults.

#include "prepare/cuda/query_key.cuh"
#include "prepare/cuda/value.cuh"

namespace vcattn::preparation::cuda {

template __global__ void key_sums_kernel<DType::f32, 64>(__grid_constant__ KernelParams const p);
template __global__ void codes_kernel<DType::f32, 64, Role::key, CodeFormat::e4m3, false>(__grid_constant__ KernelParams const p);
template __global__ void codes_kernel<DType::f32, 64, Role::query, CodeFormat::e4m3, false>(__grid_constant__ KernelParams const p);
template __global__ void value_stats_kernel<DType::f32, 64>(__grid_constant__ KernelParams const p);
template __global__ void value_codes_kernel<DType::f32, 64>(__grid_constant__ KernelParams const p);

}  // namespace vcattn::preparation::cuda
