// src/device/cuda/ for the emulated device: memory, and nothing that takes time.

#include "device/cuda/runtime.hpp"

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "device/cuda/tensor_map.hpp"
#include "emulator/device/device.hpp"
#include "emulator/tensor_map.hpp"
#include "vcattn/types.hpp"

namespace vcattn::emulator {

EmulatedDevice& device() {
  static EmulatedDevice the_device;
  return the_device;
}

void EmulatedDevice::add(Counters const& more) {
  counters.warp_instructions += more.warp_instructions;
  counters.thread_instructions += more.thread_instructions;
  counters.matrix_instructions += more.matrix_instructions;
  counters.copied_bytes += more.copied_bytes;
  counters.matrix_seconds += more.matrix_seconds;
  for (auto const& [name, count] : more.by_form) counters.by_form[name] += count;
}

}  // namespace vcattn::emulator

namespace vcattn::device::cuda {

using emulator::Access;

std::string unavailable_reason() { return ""; }
void require_device() {}
std::string device_description() { return "emulator (sm_90, " + std::to_string(multiprocessors()) + " SMs)"; }
int multiprocessors() { return emulator::device().multiprocessors; }
int current_device() { return 0; }

std::shared_ptr<void> allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  static int number = 0;
  std::size_t const rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw Error(ErrorCode::out_of_memory, "no memory for " + std::to_string(bytes) + " bytes");
  emulator::device().memory.add(memory, bytes, "memory " + std::to_string(++number), Access::read_write, false);
  return {memory, [](void* p) {
            emulator::device().memory.remove(p);
            std::free(p);
          }};
}
void create_memory_pool() {}
std::shared_ptr<void> allocate_on_stream(std::size_t bytes, void*) { return allocate(bytes); }

void copy_to_device(void* device, void const* host, std::size_t bytes) {
  if (bytes == 0) return;
  emulator::device().memory.mark_written(device, bytes);
  std::memcpy(device, host, bytes);
}
void copy_to_host(void* host, void const* device, std::size_t bytes, void*) {
  if (bytes != 0) std::memcpy(host, device, bytes);
}
void fill(void* device, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return;
  emulator::device().memory.mark_written(device, bytes);
  std::memset(device, value, bytes);
}

namespace {
using Clock = std::chrono::steady_clock;
}  // namespace

std::shared_ptr<void> create_event() { return std::make_shared<Clock::time_point>(); }
void record_event(void* event, void*) { *static_cast<Clock::time_point*>(event) = Clock::now(); }
double elapsed_ms(void* start, void* stop) {
  return std::chrono::duration<double, std::milli>(*static_cast<Clock::time_point*>(stop) - *static_cast<Clock::time_point*>(start))
      .count();
}

CUtensorMap make_tensor_map(BoxedTensor const& tensor) {
  emulator::TensorMap map;
  map.base = reinterpret_cast<std::uint64_t>(tensor.base);
  map.rows = tensor.rows;
  map.columns = tensor.columns;
  map.row_bytes = tensor.columns * tensor.element_bytes;
  map.box_rows = static_cast<std::uint32_t>(tensor.box_rows);
  map.box_columns = static_cast<std::uint32_t>(tensor.box_columns);
  map.element_bytes = static_cast<std::uint32_t>(tensor.element_bytes);
  map.swizzle = tensor.swizzle == BoxSwizzle::bytes_128 ? emulator::Swizzle::bytes_128 : emulator::Swizzle::bytes_64;
  emulator::check_tensor_map(map);
  CUtensorMap result{};
  static_assert(sizeof result == sizeof map);
  std::memcpy(&result, &map, sizeof map);
  return result;
}

}  // namespace vcattn::device::cuda
