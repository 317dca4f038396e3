#include "dispatch/cuda.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "attention/sm90a/attention.hpp"
#include "device/cuda/runtime.hpp"
#include "formats/tensor_check.hpp"
#include "grouping/cuda/group_values.hpp"
#include "prepare/cuda/prepare.hpp"

namespace vcattn::dispatch {

std::string cuda_unsupported_reason(formats::PreparedLayout const& layout, Options const& options) {
  if (std::string const reason = device::cuda::unavailable_reason(); !reason.empty()) return reason;
  return attention_sm90a::unsupported_reason(layout, options);
}

void load_cuda_kernels() {
  static std::mutex mutex;
  static std::set<int> loaded;
  int const device = device::cuda::current_device();
  std::lock_guard const lock(mutex);
  if (loaded.count(device) != 0) return;
  attention_sm90a::load_kernels();
  preparation::cuda::load_kernels();
  grouping::cuda::load_kernels();
  device::cuda::create_memory_pool();
  loaded.insert(device);
}

namespace {

grouping::cuda::DeviceValues device_values(Problem const& problem, formats::LayoutPlan const& plan,
                                           formats::SequenceExtent const* device_sequences) {
  return {problem.v, !problem.cu_seqlens_k.empty(), plan.sequences, device_sequences};
}

Options grouping_options(Problem const& problem, Options const& options) {
  Options resolved = options;
  resolved.order = formats::resolve_order(options, problem.causal);
  return resolved;
}

/// What kernels would fault on.
std::string misaligned_input(Problem const& p) {
  using formats::misaligned;
  std::string reason;
  auto const check = [&](void const* data, std::int64_t element_bytes, char const* name) {
    if (reason.empty()) reason = misaligned(data, element_bytes, name);
  };
  check(p.q.data, dtype_bytes(p.q.dtype), "q");
  check(p.k.data, dtype_bytes(p.k.dtype), "k");
  check(p.v.data, dtype_bytes(p.v.dtype), "v");
  check(p.permutation.data(), sizeof(std::int32_t), "permutation");
  if (p.rope) check(p.rope->cos, sizeof(float), "rope.cos"), check(p.rope->sin, sizeof(float), "rope.sin");
  return reason;
}

}  // namespace

std::string cuda_prepare_unsupported_reason(Problem const& problem, Options const& options, formats::LayoutPlan const& plan) {
  if (std::string reason = device::cuda::unavailable_reason(); !reason.empty()) return reason;
  if (std::string reason = misaligned_input(problem); !reason.empty()) return reason;
  if (options.check_finite) {
    return "check_finite=on waits for the data, which a CUDA call does not; switch it off: NaN and infinity then mark the rows and heads "
           "that they reach";
  }
  if (std::string reason = preparation::cuda::unsupported_reason(plan.layout, options); !reason.empty()) return reason;
  if (!problem.permutation.empty()) return "";
  return grouping::cuda::unsupported_reason(device_values(problem, plan, nullptr), grouping_options(problem, options));
}

std::string cuda_call_unsupported_reason(Problem const& problem, Options const& options, formats::LayoutPlan const& plan) {
  if (std::string reason = cuda_unsupported_reason(plan.layout, options); !reason.empty()) return reason;
  return cuda_prepare_unsupported_reason(problem, options, plan);
}

std::size_t cuda_prepare_workspace_bytes(Problem const& problem, Options const& options, formats::LayoutPlan const& plan) {
  std::size_t const bytes = formats::aligned_size(preparation::cuda::workspace_bytes(plan.layout, options));
  if (!problem.permutation.empty()) return bytes;
  auto const values = device_values(problem, plan, nullptr);
  Options const resolved = grouping_options(problem, options);
  std::size_t const centroids = formats::aligned_size(grouping::cuda::centroid_bytes(values, resolved));
  return std::max(bytes, centroids + formats::aligned_size(grouping::cuda::workspace_bytes(values, resolved)));
}

void prepare_cuda(Problem const& problem, Options const& options, formats::LayoutPlan const& plan, std::byte* slab, std::byte* workspace,
                  Stream stream) {
  formats::SlabView<std::byte> const view(plan.layout, slab);
  auto* const sequences = view.section<formats::SequenceExtent>(plan.layout.sequences);
  auto* const permutation = view.section<std::int32_t>(plan.layout.permutation);
  preparation::cuda::write_sequences(plan.sequences, sequences, stream);
  if (!problem.permutation.empty()) {
    device::cuda::copy_on_device(permutation, problem.permutation.data(), problem.permutation.size_bytes(), stream);
  } else if (permutation != nullptr) {
    auto const values = device_values(problem, plan, sequences);
    Options const resolved = grouping_options(problem, options);
    grouping::cuda::group_values(values, resolved, /*warm=*/false, reinterpret_cast<float*>(workspace), permutation,
                                 workspace + formats::aligned_size(grouping::cuda::centroid_bytes(values, resolved)), stream);
  }
  preparation::cuda::prepare(problem, options, view, workspace, stream);
}

std::size_t cuda_workspace_bytes(formats::PreparedLayout const& layout, Options const& options) {
  return attention_sm90a::workspace_bytes(layout, options);
}

void check_results(MutableTensorView const& o, float const* lse) {
  for (std::string const& text : {formats::misaligned(o.data, dtype_bytes(o.dtype), "o"), formats::misaligned(lse, sizeof(float), "lse")}) {
    if (!text.empty()) throw Error(ErrorCode::invalid_argument, text);
  }
}

void attention_cuda(Prepared::Impl const& prepared, MutableTensorView const& o, float* lse, std::span<std::byte> workspace, Stream stream) {
  std::string const reason = cuda_unsupported_reason(prepared.layout, prepared.options);
  if (!reason.empty()) throw Error(ErrorCode::unsupported, reason);
  if (int const current = device::cuda::current_device(); current != prepared.device_ordinal) {
    throw Error(ErrorCode::invalid_argument, "attention needs the device of the prepared problem, " +
                                                 std::to_string(prepared.device_ordinal) + ", to be current; got " +
                                                 std::to_string(current) + "; call cudaSetDevice");
  }
  check_results(o, lse);
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
