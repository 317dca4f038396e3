#pragma once

// Whether a caller's tensor can be addressed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include "vcattn/types.hpp"

namespace vcattn::formats {

inline std::string shape_text(std::array<std::int64_t, 4> const& shape) {
  return "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + ", " + std::to_string(shape[2]) + ", " +
         std::to_string(shape[3]) + "]";
}

/// Throws Error unless the tensor has a dtype, and elements that are addressable: |offset of the farthest element| in bytes fits an int64.
template <typename View>
void check_view(View const& t, std::string const& name) {
  auto const invalid = [](std::string const& text) { throw Error(ErrorCode::invalid_argument, text); };
  if (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    invalid(name + " must be f32, f16 or bf16; got dtype " + std::to_string(static_cast<std::uint32_t>(t.dtype)));
  }
  std::int64_t elements = 1;
  std::int64_t reach = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] < 0) invalid(name + " must have non-negative sizes [batch, seqlen, num_heads, head_dim]; got " + shape_text(t.shape));
    std::int64_t span = 0;
    std::int64_t const steps = std::max<std::int64_t>(t.shape[i] - 1, 0);
    if (__builtin_mul_overflow(elements, t.shape[i], &elements) || (steps > 0 && t.stride[i] == std::numeric_limits<std::int64_t>::min()) ||
        (steps > 0 && __builtin_mul_overflow(steps, std::abs(t.stride[i]), &span)) || __builtin_add_overflow(reach, span, &reach)) {
      invalid(name + " spans more than 2^63 elements with shape " + shape_text(t.shape) + "; check shape and strides");
    }
  }
  if (elements > std::numeric_limits<std::int64_t>::max() / 64 || reach > std::numeric_limits<std::int64_t>::max() / 8) {
    invalid(name + " spans more than 2^63 bytes with shape " + shape_text(t.shape) + "; check shape and strides");
  }
  if (elements > 0 && t.data == nullptr) invalid(name + " has elements but no data pointer; pass the address of its first element");
}

/// What is wrong with a tensor or table for kernels, which access whole elements; empty if nothing is.
inline std::string misaligned(void const* data, std::int64_t element_bytes, char const* name) {
  auto const address = reinterpret_cast<std::uintptr_t>(data);
  if (address % static_cast<std::uintptr_t>(element_bytes) == 0) return "";
  return std::string(name) + " must be aligned to its elements of " + std::to_string(element_bytes) +
         " bytes on a CUDA device; got address " + std::to_string(address);
}

}  // namespace vcattn::formats
