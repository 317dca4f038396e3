#include "vcattn/cuda.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/cuda/runtime.hpp"
#include "dispatch/cuda.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn {

namespace cuda = device::cuda;

namespace {

void check_bytes(std::size_t bytes, std::size_t size) {
  if (bytes > size) {
    throw Error(ErrorCode::invalid_argument,
                "a CudaBuffer copy needs at most its " + std::to_string(size) + " bytes; got " + std::to_string(bytes));
  }
}

}  // namespace

std::string cuda_unavailable_reason() { return cuda::unavailable_reason(); }
std::string cuda_device_description() { return cuda::device_description(); }

void load_cuda_kernels() {
  cuda::require_device();
  dispatch::load_cuda_kernels();
}

CudaBuffer::CudaBuffer(std::size_t bytes) : memory_(cuda::allocate(bytes)), bytes_(bytes) {}
CudaBuffer::CudaBuffer(CudaBuffer&& other) noexcept : memory_(std::move(other.memory_)), bytes_(std::exchange(other.bytes_, 0)) {}
CudaBuffer& CudaBuffer::operator=(CudaBuffer&& other) noexcept {
  memory_ = std::move(other.memory_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void CudaBuffer::upload(void const* host, std::size_t bytes) {
  check_bytes(bytes, bytes_);
  cuda::copy_to_device(memory_.get(), host, bytes);
}
void CudaBuffer::download(void* host, std::size_t bytes, Stream stream) const {
  check_bytes(bytes, bytes_);
  cuda::copy_to_host(host, memory_.get(), bytes, stream);
}
void CudaBuffer::fill(unsigned char value) { cuda::fill(memory_.get(), value, bytes_); }

Prepared to_cuda(Prepared const& prepared, std::span<std::byte> storage) {
  cuda::require_device();
  if (prepared.empty() || prepared.device() != Device::cpu) {
    throw Error(ErrorCode::invalid_argument, std::string("to_cuda needs a problem prepared on the CPU; got ") +
                                                 (prepared.empty() ? "an empty Prepared" : "one that is on a device already"));
  }
  auto const& source = prepared.impl();
  std::size_t const bytes = source.layout.total_bytes;
  if (!storage.empty()) formats::check_memory(storage, bytes, "storage in device memory", "prepared.size_bytes()");
  auto impl = std::make_unique<Prepared::Impl>();
  impl->layout = source.layout;
  impl->options = source.options;
  impl->device = Device::cuda;
  impl->device_ordinal = cuda::current_device();
  impl->varlen = source.varlen;
  impl->value_energy_removed = source.value_energy_removed;
  if (storage.empty()) impl->device_owned = cuda::allocate(bytes);
  impl->slab = storage.empty() ? static_cast<std::byte*>(impl->device_owned.get()) : storage.data();
  cuda::copy_to_device(impl->slab, source.slab, bytes);
  dispatch::load_cuda_kernels();
  return Prepared(std::move(impl));
}

CudaTimer::CudaTimer() : start_(cuda::create_event()), stop_(cuda::create_event()) {}
void CudaTimer::start(Stream stream) { cuda::record_event(start_.get(), stream); }
double CudaTimer::stop_ms(Stream stream) {
  cuda::record_event(stop_.get(), stream);
  return cuda::elapsed_ms(start_.get(), stop_.get());
}

}  // namespace vcattn
