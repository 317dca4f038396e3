#pragma once

// Rows of a caller's tensor, any dtype and strides, as FP32.

#include <cstddef>
#include <cstdint>

#include "core/half.hpp"
#include "vcattn/types.hpp"

namespace vcattn::formats {

/// Whether `run` neighbouring channels from a multiple of `run` on can be accessed at once: they are contiguous, and begin at a multiple of
/// their own size in every row. View: TensorView or MutableTensorView; run: a power of two.
template <typename View>
bool has_aligned_runs(View const& tensor, std::int64_t run) {
  if (tensor.stride[3] != 1) return false;
  for (std::size_t d = 0; d < 3; ++d) {
    if (tensor.shape[d] > 1 && tensor.stride[d] % run != 0) return false;
  }
  return reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(run * dtype_bytes(tensor.dtype)) == 0;
}

/// Reads head_dim elements from element `offset` of the tensor on.
inline void read_row(TensorView const& tensor, std::int64_t offset, float* out) {
  auto const read = [&](auto const* row, auto const& decode) {
    std::int64_t const stride = tensor.stride[3];
    if (stride == 1) {  // the usual case, vectorised
      for (std::int64_t c = 0; c < tensor.head_dim(); ++c) out[c] = decode(row[c]);
    } else {
      for (std::int64_t c = 0; c < tensor.head_dim(); ++c) out[c] = decode(row[c * stride]);
    }
  };
  auto const* const half = static_cast<std::uint16_t const*>(tensor.data);
  switch (tensor.dtype) {
    case DType::f32:
      return read(static_cast<float const*>(tensor.data) + offset, [](float x) { return x; });
    case DType::f16:
      return read(half + offset, [](std::uint16_t x) { return core::fp16_decode(x); });
    case DType::bf16:
      return read(half + offset, [](std::uint16_t x) { return core::bf16_decode(x); });
  }
}

}  // namespace vcattn::formats
