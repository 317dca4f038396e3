#include "emulator/tensor_map.hpp"

#include <string>

#include "emulator/fault.hpp"

namespace vcattn::emulator {

namespace {

void require(bool holds, char const* what) {
  if (!holds) throw Fault(std::string("tensor map: ") + what);
}

std::uint32_t swizzle_bytes(Swizzle swizzle) {
  constexpr std::uint32_t kBytes[] = {1u << 20, 128, 64, 32};
  return kBytes[static_cast<std::uint32_t>(swizzle)];
}

}  // namespace

void check_tensor_map(TensorMap const& map) {
  require(map.mark == TensorMap::kMark, "no tensor map at this address");
  require(map.base % 16 == 0, "the tensor must be aligned to 16 bytes");
  require(map.row_bytes % 16 == 0, "rows must be multiples of 16 bytes apart");
  require(map.rows > 0 && map.columns > 0 && map.rows <= (std::int64_t{1} << 32) && map.columns <= (std::int64_t{1} << 32),
          "1 to 2^32 rows and columns");
  require(map.box_rows >= 1 && map.box_rows <= 256 && map.box_columns >= 1 && map.box_columns <= 256, "1 to 256 rows and columns of a box");
  require(map.element_bytes == 1 || map.element_bytes == 2 || map.element_bytes == 4, "elements of 1, 2 or 4 bytes");
  require(map.box_columns * map.element_bytes % 16 == 0, "rows of a box must be multiples of 16 bytes");
  require(map.box_columns * map.element_bytes <= swizzle_bytes(map.swizzle), "rows of a box must fit into the swizzle pattern");
}

}  // namespace vcattn::emulator
