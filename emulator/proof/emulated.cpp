#include <cstring>

#include "emulator/launch.hpp"
#include "emulator/loader.hpp"
#include "emulator/proof/machine.hpp"
#include "emulator/tensor_map.hpp"

namespace vcattn::emulator::proof {

namespace {

/// Memory at a multiple of 128 bytes, as the driver gives it.
struct AlignedBytes {
  explicit AlignedBytes(std::size_t count) : storage(count + 128) {
    data = storage.data() + (128 - reinterpret_cast<std::uintptr_t>(storage.data()) % 128) % 128;
  }
  std::vector<std::uint8_t> storage;
  std::uint8_t* data;
};

TensorMap map_of(BoxedInput const& boxes, std::uint8_t const* input) {
  constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128};
  TensorMap map;
  map.base = reinterpret_cast<std::uint64_t>(input + boxes.offset);
  map.rows = boxes.rows;
  map.columns = boxes.columns;
  map.row_bytes = std::int64_t{boxes.columns} * boxes.element_bytes;
  map.box_rows = boxes.box_rows;
  map.box_columns = boxes.box_columns;
  map.element_bytes = boxes.element_bytes;
  map.swizzle = kSwizzles[boxes.swizzle];
  return map;
}

}  // namespace

std::vector<std::uint8_t> run_emulated(Program const& program, std::uint64_t seed) {
  Module const module = load_module(program.ptx);
  AlignedBytes input(program.input.size()), output(program.output_bytes);
  std::memcpy(input.data, program.input.data(), program.input.size());
  GlobalMemory global;
  global.add(input.data, program.input.size(), "input", Access::read, true);
  global.add(output.data, program.output_bytes, "output", Access::read_write, true);
  std::uint8_t parameters[kParameterBytes] = {};
  void const* const pointers[2] = {output.data, input.data};
  std::memcpy(parameters, pointers, sizeof pointers);
  if (program.boxes.columns != 0) {
    TensorMap const map = map_of(program.boxes, input.data);
    std::memcpy(parameters + kMapOffset, &map, sizeof map);
  }
  LaunchConfig config;
  config.grid = {program.ctas};
  config.block = {program.threads};
  config.shared_bytes = program.shared_bytes;
  config.seed = seed;
  (void)launch(module, "proof", config, parameters, global);
  return {output.data, output.data + program.output_bytes};
}

}  // namespace vcattn::emulator::proof
