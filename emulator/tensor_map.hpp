#pragma once

// Tensor maps in an encoding of our own, and the address pattern of swizzled tiles.

#include <cstdint>

namespace vcattn::emulator {

/// As bits 62-63 of a matrix descriptor.
enum class Swizzle : std::uint32_t { none = 0, bytes_128 = 1, bytes_64 = 2, bytes_32 = 3 };

/// Shared-memory address of a byte of a tile from its address in the plain tile: 16-byte chunks are exchanged within 128, 64 or 32 bytes.
constexpr std::uint64_t swizzled(std::uint64_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes_128:
      return address ^ (((address >> 7) & 7u) << 4);
    case Swizzle::bytes_64:
      return address ^ (((address >> 7) & 3u) << 4);
    case Swizzle::bytes_32:
      return address ^ (((address >> 7) & 1u) << 4);
    case Swizzle::none:
      break;
  }
  return address;
}

/// A row-major tensor [rows][columns] that is copied in boxes; elements outside of it arrive as zeros. 128 bytes, in place of a
/// CUtensorMap.
struct alignas(64) TensorMap {
  static constexpr std::uint64_t kMark = 0x70616D2D6E746376u;

  std::uint64_t mark = kMark;
  std::uint64_t base = 0;
  std::int64_t rows = 0, columns = 0, row_bytes = 0;
  std::uint32_t box_rows = 0, box_columns = 0, element_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  std::uint8_t unused[64] = {};

  std::uint32_t box_bytes() const { return box_rows * box_columns * element_bytes; }
};
static_assert(sizeof(TensorMap) == 128);

/// Throws Fault where cuTensorMapEncodeTiled would refuse.
void check_tensor_map(TensorMap const& map);

}  // namespace vcattn::emulator
