// Public entry points: validate, choose, call.

#include "vcattn/attention.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "attention/cpu/attention.hpp"
#include "device/cpu/isa.hpp"
#include "device/cuda/runtime.hpp"
#include "dispatch/cuda.hpp"
#include "dispatch/validate.hpp"
#include "formats/prepared_layout.hpp"
#include "prepare/prepare.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn {

namespace {

using formats::aligned_size;
using formats::kSectionAlignment;

std::byte* aligned_start(std::vector<std::byte>& owned, std::size_t bytes) {
  owned.resize(bytes + kSectionAlignment);
  auto const address = reinterpret_cast<std::uintptr_t>(owned.data());
  return owned.data() + (kSectionAlignment - address % kSectionAlignment) % kSectionAlignment;
}

/// The caller's memory if any, else memory kept in `owned`.
std::byte* memory_for(std::span<std::byte> given, std::size_t bytes, char const* what, char const* ask, std::vector<std::byte>& owned) {
  if (given.empty()) return aligned_start(owned, bytes);
  formats::check_memory(given, bytes, what, ask);
  return given.data();
}

/// View of the value rows of one varlen sequence.
TensorView sequence_values(TensorView const& v, std::int64_t begin, std::int64_t rows) {
  TensorView view = v;
  view.shape[1] = rows;
  if (v.data != nullptr) view.data = static_cast<std::byte const*>(v.data) + begin * v.stride[1] * dtype_bytes(v.dtype);
  return view;
}

/// Fills the permutation section: the caller's, sequence order, or k-means per sequence.
void fill_permutation(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab) {
  auto const& l = slab.layout();
  auto* const permutation = slab.section<std::int32_t>(l.permutation);
  if (permutation == nullptr) return;
  if (!problem.permutation.empty()) {
    std::copy(problem.permutation.begin(), problem.permutation.end(), permutation);
    return;
  }
  Options resolved = options;
  resolved.order = formats::resolve_order(options, problem.causal);
  if (resolved.order == GroupOrder::sequence) {
    for (auto const& s : slab.sequences()) {
      for (std::int64_t h = 0; h < l.num_heads_kv; ++h) {
        for (std::int64_t i = 0; i < s.rows_kv; ++i) permutation[slab.row_kv(s, h) + i] = static_cast<std::int32_t>(i);
      }
    }
    return;
  }
  if (problem.cu_seqlens_k.empty()) {
    auto const state = group_values(problem.v, resolved, problem.seqused_k);
    std::copy(state.permutation.begin(), state.permutation.end(), permutation);
    return;
  }
  for (std::size_t b = 0; b < static_cast<std::size_t>(l.batch); ++b) {
    auto const& s = slab.sequences()[b];
    auto const used = static_cast<std::int32_t>(s.seqlen_kv);
    auto const state = group_values(sequence_values(problem.v, s.row_begin_kv, s.rows_kv), resolved, {&used, 1});
    std::copy(state.permutation.begin(), state.permutation.end(), permutation + slab.row_kv(s, 0));
  }
}

std::unique_ptr<Prepared::Impl> make_impl(Problem const& problem, Options const& options, formats::LayoutPlan const& plan) {
  auto impl = std::make_unique<Prepared::Impl>();
  impl->layout = plan.layout;
  impl->options = options;
  impl->varlen = !problem.cu_seqlens_q.empty();
  return impl;
}

void require_no(std::string const& unsupported_reason) {
  if (!unsupported_reason.empty()) throw Error(ErrorCode::unsupported, unsupported_reason);
}

/// Workspace of attend(): the prepared problem, then scratch that its two halves use one after the other.
std::size_t attend_bytes(Problem const& problem, Options const& options, formats::LayoutPlan const& plan, Device device) {
  std::size_t const scratch = device == Device::cpu ? attention_cpu::workspace_bytes(plan.layout, plan.sequences, options)
                                                    : std::max(dispatch::cuda_prepare_workspace_bytes(problem, options, plan),
                                                               dispatch::cuda_workspace_bytes(plan.layout, options));
  return aligned_size(plan.layout.total_bytes) + scratch;
}

Prepared prepare_on_cpu(Problem const& problem, Options const& options, formats::LayoutPlan const& plan, std::span<std::byte> storage) {
  dispatch::check_permutation(problem);
  if (options.check_finite) dispatch::check_finite(problem, options.num_threads);
  auto impl = make_impl(problem, options, plan);
  impl->slab = memory_for(storage, plan.layout.total_bytes, "storage", "prepared_size_bytes()", impl->owned);
  formats::SlabView<std::byte> const slab(impl->layout, impl->slab);
  std::copy(plan.sequences.begin(), plan.sequences.end(), slab.section<formats::SequenceExtent>(impl->layout.sequences));
  fill_permutation(problem, options, slab);
  impl->value_energy_removed = preparation::prepare_cpu(problem, options, slab);
  return Prepared(std::move(impl));
}

/// Of a problem that the device serves.
Prepared prepare_on_cuda(Problem const& problem, Options const& options, formats::LayoutPlan const& plan, std::span<std::byte> storage,
                         Call const& call) {
  dispatch::load_cuda_kernels();
  auto impl = make_impl(problem, options, plan);
  impl->device = Device::cuda;
  impl->device_ordinal = device::cuda::current_device();
  impl->value_energy_removed = std::numeric_limits<double>::quiet_NaN();
  if (storage.empty()) {
    impl->device_owned = device::cuda::allocate(plan.layout.total_bytes);
    storage = {static_cast<std::byte*>(impl->device_owned.get()), plan.layout.total_bytes};
  }
  formats::check_memory(storage, plan.layout.total_bytes, "storage", "prepared_size_bytes()");
  impl->slab = storage.data();

  std::size_t const bytes = dispatch::cuda_prepare_workspace_bytes(problem, options, plan);
  std::span<std::byte> workspace = call.workspace;
  std::shared_ptr<void> pooled;
  if (workspace.empty()) {
    pooled = device::cuda::allocate_on_stream(bytes, call.stream);
    workspace = {static_cast<std::byte*>(pooled.get()), bytes};
  }
  formats::check_memory(workspace, bytes, "workspace", "call_workspace_size_bytes()");
  dispatch::prepare_cuda(problem, options, plan, impl->slab, workspace.data(), call.stream);
  return Prepared(std::move(impl));
}

}  // namespace

Prepared::Prepared() = default;
Prepared::~Prepared() = default;
Prepared::Prepared(Prepared&&) noexcept = default;
Prepared& Prepared::operator=(Prepared&&) noexcept = default;
Prepared::Prepared(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Options const& Prepared::options() const { return impl_->options; }
Device Prepared::device() const { return impl_->device; }
std::size_t Prepared::size_bytes() const { return impl_->layout.total_bytes; }
double Prepared::value_energy_removed() const { return impl_->value_energy_removed; }
std::span<std::int32_t const> Prepared::permutation() const {
  auto const count = static_cast<std::size_t>(impl_->layout.num_heads_kv * impl_->layout.rows_kv);
  return {impl_->view().section<std::int32_t>(impl_->layout.permutation), count};
}

std::size_t prepared_size_bytes(Problem const& problem, Options const& options) {
  dispatch::check_problem(problem, options);
  return formats::plan_layout(problem, options).layout.total_bytes;
}

std::size_t workspace_size_bytes(Problem const& problem, Options const& options, Device device) {
  dispatch::check_device(device);
  dispatch::check_problem(problem, options);
  auto const plan = formats::plan_layout(problem, options);
  if (device == Device::cuda) {
    require_no(dispatch::cuda_unsupported_reason(plan.layout, options));
    return dispatch::cuda_workspace_bytes(plan.layout, options);
  }
  return attention_cpu::workspace_bytes(plan.layout, plan.sequences, options);
}

std::size_t call_workspace_size_bytes(Problem const& problem, Options const& options, Device device) {
  dispatch::check_device(device);
  dispatch::check_problem(problem, options);
  auto const plan = formats::plan_layout(problem, options);
  if (device == Device::cuda) {
    require_no(dispatch::cuda_prepare_unsupported_reason(problem, options, plan));
    bool const attended = dispatch::cuda_unsupported_reason(plan.layout, options).empty();
    if (!attended) return dispatch::cuda_prepare_workspace_bytes(problem, options, plan);
  }
  return attend_bytes(problem, options, plan, device);
}

Prepared prepare(Problem const& problem, Options const& options, std::span<std::byte> storage, Call const& call) {
  dispatch::check_device(call.device);
  dispatch::check_problem(problem, options);
  auto const plan = formats::plan_layout(problem, options);
  if (call.device == Device::cpu) return prepare_on_cpu(problem, options, plan, storage);
  require_no(dispatch::cuda_prepare_unsupported_reason(problem, options, plan));
  return prepare_on_cuda(problem, options, plan, storage, call);
}

void attention(Prepared const& prepared, MutableTensorView const& o, std::span<float> lse, std::span<std::byte> workspace, Stream stream) {
  if (prepared.empty())
    throw Error(ErrorCode::invalid_argument, "attention needs a prepared problem; got an empty Prepared; call prepare() first");
  auto const& impl = prepared.impl();
  auto const& l = impl.layout;
  bool const varlen = impl.varlen;
  std::int64_t const seqlen_q = varlen ? l.rows_q : l.rows_q / l.batch;
  dispatch::check_output(o, {varlen ? 1 : l.batch, seqlen_q, l.num_heads, l.head_dim});
  dispatch::check_lse(lse, l.num_heads * l.rows_q);
  if (impl.device == Device::cuda) {
    dispatch::attention_cuda(impl, o, lse.empty() ? nullptr : lse.data(), workspace, stream);
    return;
  }
  std::vector<std::byte> owned;
  std::size_t const bytes = attention_cpu::workspace_bytes(l, impl.view().sequences(), impl.options);
  std::byte* const scratch = memory_for(workspace, bytes, "workspace", "workspace_size_bytes()", owned);
  attention_cpu::attention(impl.view(), impl.options, varlen, o, lse, scratch, device::cpu::best_isa());
}

void attend(Problem const& problem, Options const& options, MutableTensorView const& o, std::span<float> lse, Call const& call) {
  dispatch::check_problem(problem, options);
  // Before the work, so that a bad output costs nothing.
  dispatch::check_device(call.device);
  dispatch::check_output(o, problem.q.shape);
  dispatch::check_lse(lse, problem.q.batch() * problem.q.num_heads() * problem.q.seqlen());
  bool const on_cuda = call.device == Device::cuda;
  if (on_cuda) dispatch::check_results(o, lse.data());
  auto const plan = formats::plan_layout(problem, options);
  if (on_cuda) require_no(dispatch::cuda_call_unsupported_reason(problem, options, plan));
  std::size_t const bytes = attend_bytes(problem, options, plan, call.device);
  std::shared_ptr<void> pooled;
  std::span<std::byte> workspace = call.workspace;
  if (workspace.empty() && on_cuda) {
    dispatch::load_cuda_kernels();
    pooled = device::cuda::allocate_on_stream(bytes, call.stream);
    workspace = {static_cast<std::byte*>(pooled.get()), bytes};
  }
  std::span<std::byte> storage;
  if (!workspace.empty()) {
    formats::check_memory(workspace, bytes, "workspace", "call_workspace_size_bytes()");
    std::size_t const prepared_bytes = aligned_size(plan.layout.total_bytes);
    storage = workspace.first(prepared_bytes);
    workspace = workspace.subspan(prepared_bytes);
  }
  Prepared const prepared = on_cuda ? prepare_on_cuda(problem, options, plan, storage, {call.device, call.stream, workspace})
                                    : prepare_on_cpu(problem, options, plan, storage);
  attention(prepared, o, lse, workspace, call.stream);
}

}  // namespace vcattn
