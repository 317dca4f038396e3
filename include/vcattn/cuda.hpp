#pragma once

// Running on a CUDA device. No CUDA types: a stream is passed as the pointer that cudaStream_t is.
//
// Every function works on the device that is current on the calling thread (cudaSetDevice). Without a usable device, or in a build without
// CUDA, each throws ErrorCode::unsupported with the reason.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "vcattn/attention.hpp"

namespace vcattn {

/// Why no CUDA device can be used from this thread: not built in, no driver, no device, an architecture without kernels. Empty: one can.
VCATTN_API std::string cuda_unavailable_reason();

/// Name and multiprocessors of the current device, e.g. "NVIDIA H200 (sm_90, 132 SMs)".
VCATTN_API std::string cuda_device_description();

/// Loads the kernels on the current device and makes its memory pool; does nothing the second time. prepare(), attend() and to_cuda() do it
/// themselves, but it may not happen during a stream capture.
VCATTN_API void load_cuda_kernels();

/// Memory of the current device. Movable, not copyable. Its destruction waits for the device and may not happen during a stream capture.
class VCATTN_API CudaBuffer {
 public:
  /// Errors: out_of_memory.
  explicit CudaBuffer(std::size_t bytes);
  CudaBuffer(CudaBuffer&& other) noexcept;
  CudaBuffer& operator=(CudaBuffer&& other) noexcept;

  void* data() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }
  /// Host to device; returns when the source may be reused. `bytes` <= size().
  void upload(void const* host, std::size_t bytes);
  /// Device to host after everything enqueued on `stream`; returns when the data is there.
  void download(void* host, std::size_t bytes, Stream stream = nullptr) const;
  /// Every byte becomes `value`.
  void fill(unsigned char value);

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_;
};

/// Copy of a prepared problem in device memory, for attention(). Waits for the copy.
/// storage: empty (allocated, owned by the result) or device memory of at least prepared.size_bytes(), 256-byte aligned, which then must
/// outlive the result, and be read by no attention() still running. permutation() of the copy is device memory. attention() of the copy
/// must run with the same device current. Errors: invalid_argument where `prepared` is on a device already.
VCATTN_API Prepared to_cuda(Prepared const& prepared, std::span<std::byte> storage = {});

/// Milliseconds that work takes on a stream, measured by events on the device.
class VCATTN_API CudaTimer {
 public:
  CudaTimer();

  void start(Stream stream = nullptr);
  /// Waits for the work enqueued since start().
  double stop_ms(Stream stream = nullptr);

 private:
  std::shared_ptr<void> start_, stop_;
};

}  // namespace vcattn
