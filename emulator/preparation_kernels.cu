// The preparation kernels that stage one type at one width, compiled to PTX for the emulator.

#include "prepare/cuda/moment.cuh"
#include "prepare/cuda/query_key.cuh"
#include "prepare/cuda/query_means.cuh"
#include "prepare/cuda/value.cuh"
#include "prepare/cuda/value_columns.cuh"

namespace vcattn::preparation::cuda {

constexpr DType kType = DType::VCATTN_DTYPE;
constexpr int kWidth = VCATTN_WIDTH;

#define VCATTN_KERNEL(...) template __global__ void __VA_ARGS__(__grid_constant__ KernelParams const p)
#define VCATTN_CODES_KERNELS(format)                                      \
  VCATTN_KERNEL(codes_kernel<kType, kWidth, Role::key, format, false>);   \
  VCATTN_KERNEL(codes_kernel<kType, kWidth, Role::key, format, true>);    \
  VCATTN_KERNEL(codes_kernel<kType, kWidth, Role::query, format, false>); \
  VCATTN_KERNEL(codes_kernel<kType, kWidth, Role::query, format, true>)

VCATTN_KERNEL(key_sums_kernel<kType, kWidth>);
VCATTN_KERNEL(query_means_kernel<kType, kWidth>);
VCATTN_KERNEL(amax_kernel<kType, kWidth, Role::key>);
VCATTN_KERNEL(amax_kernel<kType, kWidth, Role::query>);
VCATTN_KERNEL(moment_kernel<kType, kWidth, Role::key>);
VCATTN_KERNEL(moment_kernel<kType, kWidth, Role::query>);
template __global__ void feedback_kernel<kWidth>(std::int32_t const*, std::uint32_t const*, int, std::byte*);
VCATTN_CODES_KERNELS(CodeFormat::e4m3);
VCATTN_CODES_KERNELS(CodeFormat::int8);
VCATTN_CODES_KERNELS(CodeFormat::nvfp4);
VCATTN_KERNEL(value_stats_kernel<kType, kWidth>);
VCATTN_KERNEL(value_codes_kernel<kType, kWidth>);
VCATTN_KERNEL(value_block_stats_kernel<kType, kWidth>);
VCATTN_KERNEL(value_columns_kernel<kType, kWidth, CodeFormat::e4m3>);
VCATTN_KERNEL(value_columns_kernel<kType, kWidth, CodeFormat::nvfp4>);

}  // namespace vcattn::preparation::cuda
