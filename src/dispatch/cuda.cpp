#include "dispatch/cuda.hpp"

#include <cstdint>
#include <memory>

#include "attention/sm90a/attention.hpp"
#include "device/cuda/runtime.hpp"

namespace vcattn::dispatch {

std::string cuda_unsupported_reason(formats::PreparedLayout const& layout, Options const& options) {
  if (std::string const reason = device::cuda::unavailable_reason(); !reason.empty()) return reason;
  return attention_sm90a::unsupported_reason(layout, options);
}

void load_cuda_kernels() {
  attention_sm90a::load_kernels();
  device::cuda::create_memory_pool();
}

std::size_t cuda_workspace_bytes(formats::PreparedLayout const& layout, Options const& options) {
  return attention_sm90a::workspace_bytes(layout, options);
}

namespace {

void check_aligned(void const* data, std::size_t bytes, char const* name) {
  if (reinterpret_cast<std::uintptr_t>(data) % bytes == 0) return;
  throw Error(ErrorCode::invalid_argument, std::string(name) + " must be aligned to its elements of " + std::to_string(bytes) +
                                               " bytes; got address " + std::to_string(reinterpret_cast<std::uintptr_t>(data)));
}

}  // namespace

void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, std::span<std::byte> workspace, Stream stream) {
  std::string const reason = cuda_unsupported_reason(prepared.layout, prepared.options);
  if (!reason.empty()) throw Error(ErrorCode::unsupported, reason);
  if (int const current = device::cuda::current_device(); current != prepared.device_ordinal) {
    throw Error(ErrorCode::invalid_argument, "attention needs the device of the prepared problem, " +
                                                 std::to_string(prepared.device_ordinal) + ", to be current; got " +
                                                 std::to_string(current) + "; call cudaSetDevice");
  }
  check_aligned(o.data, static_cast<std::size_t>(dtype_bytes(o.dtype)), "o");
  check_aligned(lse, sizeof(float), "lse");
  std::size_t const bytes = cuda_workspace_bytes(prepared.layout, prepared.options);
  std::shared_ptr<void> owned;
  if (workspace.empty() && bytes > 0) {
    owned = device::cuda::allocate_on_stream(bytes, stream);
    workspace = {static_cast<std::byte*>(owned.get()), bytes};
  }
  formats::check_memory(workspace, bytes, "workspace in device memory", "workspace_size_bytes(problem, options, Device::cuda)");
  attention_sm90a::attention(prepared.view(), prepared.options, prepared.varlen, o, lse, workspace.data(), stream);
}

}  // namespace vcattn::dispatch
