#pragma once

// One instruction form as a small kernel with its operands, for a GPU and for the emulator.

#include <cstdint>
#include <string>
#include <vector>

namespace vcattn::emulator::proof {

/// A tensor inside the input, copied in boxes. Swizzle as CUtensorMapSwizzle: 0 none, 1 32, 2 64, 3 128 bytes.
struct BoxedInput {
  std::uint64_t offset = 0;
  std::uint32_t rows = 0, columns = 0, element_bytes = 0;  // no columns: no tensor
  std::uint32_t box_rows = 0, box_columns = 0, swizzle = 0;
};

/// The kernel is called `proof`; its parameter is a structure: addresses of output and input, and at byte 128 the tensor map.
struct Program {
  std::string name, ptx;
  std::uint32_t ctas = 1, threads = 1, shared_bytes = 0;
  std::vector<std::uint8_t> input;
  std::size_t output_bytes = 0;  // zeros before
  BoxedInput boxes = {};
  std::uint32_t tolerance = 0;  // ulp of FP32
};

inline constexpr std::uint32_t kParameterBytes = 256, kMapOffset = 128;

/// Forms of the attention kernels, their tensor copies, and forms that only preparation and grouping use.
std::vector<Program> attention_programs();
std::vector<Program> box_programs();
std::vector<Program> preparation_programs();

}  // namespace vcattn::emulator::proof
