// Stands in for runtime.cpp in a build without CUDA.

#include "device/cuda/runtime.hpp"
#include "vcattn/types.hpp"

namespace vcattn::device::cuda {

std::string unavailable_reason() { return "this build has no CUDA kernels; use device cpu, or build with nvcc (VCATTN_CUDA=ON)"; }

namespace {

[[noreturn]] void absent() { throw Error(ErrorCode::unsupported, unavailable_reason()); }

}  // namespace

void require_device() { absent(); }
std::string device_description() { absent(); }
int multiprocessors() { absent(); }
int current_device() { absent(); }
std::shared_ptr<void> allocate(std::size_t) { absent(); }
void create_memory_pool() { absent(); }
std::shared_ptr<void> allocate_on_stream(std::size_t, void*) { absent(); }
void copy_to_device(void*, void const*, std::size_t) { absent(); }
void copy_to_host(void*, void const*, std::size_t, void*) { absent(); }
void copy_on_device(void*, void const*, std::size_t, void*) { absent(); }
void fill(void*, unsigned char, std::size_t) { absent(); }
std::shared_ptr<void> create_event() { absent(); }
void record_event(void*, void*) { absent(); }
double elapsed_ms(void*, void*) { absent(); }

}  // namespace vcattn::device::cuda
