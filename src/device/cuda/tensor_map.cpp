#include "device/cuda/tensor_map.hpp"

#include <string>

#include "device/cuda/check.hpp"

namespace vcattn::device::cuda {

namespace {

/// The driver is not linked: the library must load where there is none.
decltype(&cuTensorMapEncodeTiled) encode_function() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kVersion = 12000;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &found),
        "cudaGetDriverEntryPoint");
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(ErrorCode::unsupported, "the CUDA driver has no cuTensorMapEncodeTiled; install a driver for CUDA 12.0 or later");
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap make_tensor_map(BoxedTensor const& tensor) {
  static auto const encode = encode_function();
  CUtensorMap map{};
  cuuint64_t const sizes[2] = {static_cast<cuuint64_t>(tensor.columns), static_cast<cuuint64_t>(tensor.rows)};
  cuuint64_t const row_bytes[1] = {sizes[0] * static_cast<cuuint64_t>(tensor.element_bytes)};
  cuuint32_t const box[2] = {static_cast<cuuint32_t>(tensor.box_columns), static_cast<cuuint32_t>(tensor.box_rows)};
  cuuint32_t const steps[2] = {1, 1};
  CUresult const result = encode(&map, tensor.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
                                 const_cast<void*>(tensor.base), sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 tensor.swizzle == BoxSwizzle::bytes_128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::internal, "cuTensorMapEncodeTiled refused [" + std::to_string(tensor.rows) + ", " +
                                         std::to_string(tensor.columns) + "] in boxes of [" + std::to_string(tensor.box_rows) + ", " +
                                         std::to_string(tensor.box_columns) + "]: CUresult " + std::to_string(static_cast<int>(result)));
  }
  return map;
}

}  // namespace vcattn::device::cuda
