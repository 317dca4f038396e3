#pragma once

// Descriptors of 2-D tensors for the bulk copy engine (TMA).

#include <cuda.h>

#include <cstdint>

namespace vcattn::device::cuda {

enum class BoxSwizzle : std::uint32_t { bytes_64, bytes_128 };

/// A row-major tensor [rows][columns] of elements of 1 byte (codes) or 2 bytes (FP16), loaded in boxes. base: 16-byte aligned.
struct BoxedTensor {
  void const* base;
  int element_bytes;
  std::int64_t rows, columns;
  int box_rows, box_columns;
  BoxSwizzle swizzle;
};

/// Errors: internal, with the values.
CUtensorMap make_tensor_map(BoxedTensor const& tensor);

}  // namespace vcattn::device::cuda
