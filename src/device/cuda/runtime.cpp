#include "device/cuda/runtime.hpp"

#include <cstdint>
#include <map>
#include <mutex>

#include "device/cuda/check.hpp"

namespace vcattn::device::cuda {

namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

namespace {

int attribute(cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, current_device()), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

std::string unavailable_reason() {
  int count = 0;
  cudaError_t const status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);  // 0: there is none
    std::string const got = driver == 0 ? "no CUDA driver" : status == cudaSuccess ? "no device" : cudaGetErrorString(status);
    return "device cuda needs a GPU of compute capability 9.0 and a driver for CUDA " + std::to_string(CUDART_VERSION / 1000) +
           " or later; got: " + got + "; use device cpu, or run where they are";
  }
  int major = 0;
  int minor = 0;
  try {
    major = attribute(cudaDevAttrComputeCapabilityMajor);
    minor = attribute(cudaDevAttrComputeCapabilityMinor);
  } catch (Error const& error) {
    return std::string("the current CUDA device cannot be used: ") + error.what() + "; use device cpu";
  }
  if (major != 9 || minor != 0) {
    return "the CUDA kernels of this build need a GPU of compute capability 9.0 (H100, H200, GH200); the current device has " +
           std::to_string(major) + "." + std::to_string(minor) + "; use device cpu";
  }
  return "";
}

void require_device() {
  if (std::string const reason = unavailable_reason(); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
}

int multiprocessors() { return attribute(cudaDevAttrMultiProcessorCount); }

std::string device_description() {
  require_device();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  return std::string(properties.name) + " (sm_" + std::to_string(properties.major) + std::to_string(properties.minor) + ", " +
         std::to_string(properties.multiProcessorCount) + " SMs)";
}

std::shared_ptr<void> allocate(std::size_t bytes) {
  require_device();
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc");
  return {memory, [](void* pointer) { (void)cudaFree(pointer); }};
}

namespace {

/// The pool of the current device, made at the first call and never destroyed: memory that went back serves the next call.
cudaMemPool_t memory_pool() {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  int const device = current_device();
  std::lock_guard const lock(mutex);
  if (auto const found = pools.find(device); found != pools.end()) return found->second;
  if (attribute(cudaDevAttrMemoryPoolsSupported) == 0) {
    throw Error(ErrorCode::unsupported, "memory inside a call needs a device with stream-ordered allocation; device " +
                                            std::to_string(device) + " has none; pass a workspace");
  }
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  std::uint64_t keep = UINT64_MAX;
  if (cudaError_t const status = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep); status != cudaSuccess) {
    (void)cudaMemPoolDestroy(pool);
    check(status, "cudaMemPoolSetAttribute");
  }
  return pools[device] = pool;
}

}  // namespace

void create_memory_pool() {
  if (attribute(cudaDevAttrMemoryPoolsSupported) != 0) (void)memory_pool();
}

std::shared_ptr<void> allocate_on_stream(std::size_t bytes, void* stream) {
  void* memory = nullptr;
  check(cudaMallocFromPoolAsync(&memory, bytes == 0 ? 1 : bytes, memory_pool(), as_stream(stream)), "cudaMallocFromPoolAsync");
  return {memory, [stream](void* pointer) { (void)cudaFreeAsync(pointer, as_stream(stream)); }};
}

void copy_to_device(void* device, void const* host, std::size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  check(cudaStreamSynchronize(nullptr), "cudaMemcpy to the device");  // from pageable memory the call may return before the copy has ended
}

void copy_to_host(void* host, void const* device, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, as_stream(stream)), "cudaMemcpyAsync to the host");
  check(cudaStreamSynchronize(as_stream(stream)), "work on the stream");
}

void copy_on_device(void* to, void const* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, as_stream(stream)), "cudaMemcpyAsync on the device");
}

void fill(void* device, unsigned char value, std::size_t bytes) {
  check(cudaMemset(device, value, bytes), "cudaMemset");
  check(cudaStreamSynchronize(nullptr), "cudaMemset");
}

std::shared_ptr<void> create_event() {
  require_device();
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return {event, [](void* handle) { (void)cudaEventDestroy(as_event(handle)); }};
}

void record_event(void* event, void* stream) { check(cudaEventRecord(as_event(event), as_stream(stream)), "cudaEventRecord"); }

double elapsed_ms(void* start, void* stop) {
  check(cudaEventSynchronize(as_event(stop)), "work on the stream");
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, as_event(start), as_event(stop)), "cudaEventElapsedTime");
  return static_cast<double>(ms);
}

}  // namespace vcattn::device::cuda
