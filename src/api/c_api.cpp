#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "api/c_api_convert.hpp"
#include "vcattn/version.hpp"

struct vcattn_prepared {
  vcattn::Prepared value;
};

struct vcattn_schedule {
  vcattn::GroupingSchedule value;
};

namespace vcattn::c_api {
namespace {

template <typename Enum>
constexpr bool same(std::uint32_t c, Enum cpp) {
  return c == static_cast<std::uint32_t>(cpp);
}

static_assert(same(VCATTN_OK, ErrorCode::ok) && same(VCATTN_INVALID_ARGUMENT, ErrorCode::invalid_argument) &&
              same(VCATTN_UNSUPPORTED, ErrorCode::unsupported) && same(VCATTN_NONFINITE, ErrorCode::nonfinite) &&
              same(VCATTN_OUT_OF_MEMORY, ErrorCode::out_of_memory) && same(VCATTN_IO, ErrorCode::io) &&
              same(VCATTN_INTERNAL, ErrorCode::internal));
static_assert(same(VCATTN_F32, DType::f32) && same(VCATTN_F16, DType::f16) && same(VCATTN_BF16, DType::bf16));
static_assert(same(VCATTN_CPU, Device::cpu) && same(VCATTN_CUDA, Device::cuda));
static_assert(same(VCATTN_ROPE_INTERLEAVED, RopeStyle::interleaved) && same(VCATTN_ROPE_ROTATE_HALF, RopeStyle::rotate_half));
static_assert(same(VCATTN_RECIPE_EXACT, Recipe::exact) && same(VCATTN_RECIPE_BF16, Recipe::bf16) && same(VCATTN_RECIPE_FP8, Recipe::fp8) &&
              same(VCATTN_RECIPE_SAGE2, Recipe::sage2) && same(VCATTN_RECIPE_VSMOOTH8, Recipe::vsmooth8) &&
              same(VCATTN_RECIPE_VC8_PAPER, Recipe::vc8_paper) && same(VCATTN_RECIPE_VC8, Recipe::vc8) &&
              same(VCATTN_RECIPE_VSMOOTH8S, Recipe::vsmooth8s) && same(VCATTN_RECIPE_VC8S, Recipe::vc8s) &&
              same(VCATTN_RECIPE_NVFP4, Recipe::nvfp4) && same(VCATTN_RECIPE_SAGE3, Recipe::sage3) &&
              same(VCATTN_RECIPE_VSMOOTH4, Recipe::vsmooth4));
static_assert(same(VCATTN_QK_F32, QkFormat::f32) && same(VCATTN_QK_BF16, QkFormat::bf16) && same(VCATTN_QK_E4M3, QkFormat::e4m3) &&
              same(VCATTN_QK_INT8, QkFormat::int8) && same(VCATTN_QK_NVFP4, QkFormat::nvfp4));
static_assert(same(VCATTN_QK_SCALING_HEAD, QkScaling::head) && same(VCATTN_QK_SCALING_BLOCK, QkScaling::block) &&
              same(VCATTN_QK_SCALING_UNIT, QkScaling::unit));
static_assert(same(VCATTN_QK_ROUNDING_NEAREST, QkRounding::nearest) && same(VCATTN_QK_ROUNDING_SHAPED_K, QkRounding::shaped_k) &&
              same(VCATTN_QK_ROUNDING_SHAPED, QkRounding::shaped));
static_assert(same(VCATTN_V_F32, VFormat::f32) && same(VCATTN_V_BF16, VFormat::bf16) && same(VCATTN_V_E4M3, VFormat::e4m3) &&
              same(VCATTN_V_NVFP4, VFormat::nvfp4));
static_assert(same(VCATTN_PROB_F32, ProbFormat::f32) && same(VCATTN_PROB_BF16, ProbFormat::bf16) &&
              same(VCATTN_PROB_E4M3, ProbFormat::e4m3) && same(VCATTN_PROB_NVFP4, ProbFormat::nvfp4) &&
              same(VCATTN_PROB_NVFP4_TWO_LEVEL, ProbFormat::nvfp4_two_level));
static_assert(same(VCATTN_EXP_EXP, ExpForm::exp) && same(VCATTN_EXP_PAPER, ExpForm::paper) &&
              same(VCATTN_EXP_OFFSET126, ExpForm::offset126) && same(VCATTN_EXP_TWO_LINE, ExpForm::two_line) &&
              same(VCATTN_EXP_AFFINE, ExpForm::affine));
static_assert(same(VCATTN_SCORES_AUTOMATIC, ScoreFormat::automatic) && same(VCATTN_SCORES_F16, ScoreFormat::f16) &&
              same(VCATTN_SCORES_F32, ScoreFormat::f32));
static_assert(same(VCATTN_ORDER_AUTOMATIC, GroupOrder::automatic) && same(VCATTN_ORDER_SEQUENCE, GroupOrder::sequence) &&
              same(VCATTN_ORDER_LABEL, GroupOrder::label) && same(VCATTN_ORDER_CHAIN, GroupOrder::chain) &&
              same(VCATTN_ORDER_CHAIN_SORTED, GroupOrder::chain_sorted));
static_assert(same(VCATTN_SCHEDULE_NEVER, SchedulePolicy::never) && same(VCATTN_SCHEDULE_FIRST_QUARTER, SchedulePolicy::first_quarter) &&
              same(VCATTN_SCHEDULE_EVERY_STEP, SchedulePolicy::every_step));
static_assert(same(VCATTN_ACTION_SEQUENCE_ORDER, GroupingAction::sequence_order) &&
              same(VCATTN_ACTION_REGROUP_COLD, GroupingAction::regroup_cold) &&
              same(VCATTN_ACTION_REGROUP_WARM, GroupingAction::regroup_warm) && same(VCATTN_ACTION_REUSE, GroupingAction::reuse));

// A plain buffer: reporting that memory ran out must not need memory.
constexpr std::size_t kErrorTextBytes = 2048;
thread_local char last_error[kErrorTextBytes] = "";

vcattn_status record_error(ErrorCode code, char const* text) {
  std::snprintf(last_error, sizeof(last_error), "%s", text);
  return static_cast<vcattn_status>(code);
}

/// Runs `body` and turns what it throws into a status and a text.
template <typename Body>
vcattn_status guarded(Body const& body) noexcept {
  try {
    body();
    return VCATTN_OK;
  } catch (Error const& error) {
    return record_error(error.code(), error.what());
  } catch (std::bad_alloc const&) {
    return record_error(ErrorCode::out_of_memory,
                        "memory: more was required than the system gave; free some, or process fewer heads per call");
  } catch (std::length_error const&) {
    return record_error(ErrorCode::out_of_memory,
                        "memory: more was required than can be addressed; check the shape, or process fewer heads per call");
  } catch (std::exception const& error) {
    return record_error(ErrorCode::internal, error.what());
  } catch (...) {
    return record_error(ErrorCode::internal, "unknown exception; please report it as a bug of vcattn");
  }
}

Device to_device(std::uint32_t device) { return to_enum(device, Device::cuda, "device"); }

/// NULL is the CPU without a stream.
Call to_call(vcattn_call const* in) {
  if (in == nullptr) return {};
  vcattn_call const c = read_struct(in, "call");
  Call const call{to_device(c.device), c.stream, to_bytes(c.workspace, c.workspace_bytes, "call.workspace")};
  if (call.device == Device::cpu && call.stream != nullptr) {
    reject("call.stream: NULL required on the CPU, got a pointer; CPU calls are synchronous");
  }
  return call;
}

/// The caller must know where a problem is, since the pointers of its outputs depend on that.
void require_device_of(Prepared const& prepared, Device device) {
  if (prepared.device() == device) return;
  if (device == Device::cuda) {
    reject("call.device: VCATTN_CPU required by a problem in host memory, got VCATTN_CUDA; copy it with vcattn_prepared_to_cuda()");
  }
  reject("call.device: VCATTN_CUDA required by a problem in device memory, got VCATTN_CPU or NULL; pass a call with VCATTN_CUDA");
}

struct Output {
  MutableTensorView o;
  std::span<float> lse;

  Extent o_extent() const { return extent_of(o, "output.o"); }
  Extent lse_extent() const { return extent_of(lse, "output.lse"); }
};

Output to_output(vcattn_output const* in) {
  vcattn_output const c = read_struct(in, "output");
  require_zero(c.reserved, "output.reserved");
  Output const out{to_view<MutableTensorView>(c.o, "output.o"), to_span(c.lse, c.lse_count, "output.lse")};
  require_disjoint(out.lse_extent(), {out.o_extent()});
  return out;
}

std::vector<Extent> inputs_of(Problem const& p) {
  std::vector<Extent> inputs{extent_of(p.q, "problem.q"),
                             extent_of(p.k, "problem.k"),
                             extent_of(p.v, "problem.v"),
                             extent_of(p.permutation, "problem.permutation"),
                             extent_of(p.seqused_k, "problem.seqused_k"),
                             extent_of(p.cu_seqlens_q, "problem.cu_seqlens_q"),
                             extent_of(p.cu_seqlens_k, "problem.cu_seqlens_k")};
  constexpr std::int64_t kMaxTable = std::int64_t{1} << 40;  // nonsense beyond that is refused by the C++ API
  if (p.rope && p.rope->rows > 0 && p.rope->rotary_dim > 0 && p.rope->rows < kMaxTable / p.rope->rotary_dim) {
    auto const floats = static_cast<std::size_t>(p.rope->rows * (p.rope->rotary_dim / 2));
    inputs.push_back(extent_of(std::span(p.rope->cos, floats), "problem.rope.cos"));
    inputs.push_back(extent_of(std::span(p.rope->sin, floats), "problem.rope.sin"));
  }
  return inputs;
}

/// Gives a span to the caller; an empty one as NULL with 0.
void hand_out(std::span<std::int32_t const> from, std::int32_t const** pointer, std::int64_t* count) {
  *pointer = from.empty() ? nullptr : from.data();
  *count = static_cast<std::int64_t>(from.size());
}

void require_size(std::size_t size, std::size_t required, char const* name) {
  if (size == required) return;
  reject(std::string(name) + ": " + std::to_string(required) + " elements required, got " + std::to_string(size) +
         "; size it by the shape in vcattn.h");
}

template <typename T>
void copy_exactly(std::vector<T> const& from, std::span<T> to, char const* name) {
  require_size(to.size(), from.size(), name);
  std::copy(from.begin(), from.end(), to.begin());
}

void copy_text(std::string const& text, char* buffer, std::size_t buffer_bytes) {
  if (buffer_bytes > 0) std::snprintf(buffer, buffer_bytes, "%s", text.c_str());
}

void give(Support const& answer, std::uint32_t& supported, char* reason, std::size_t reason_bytes) {
  supported = answer.ok ? 1 : 0;
  copy_text(answer.reason, reason, reason_bytes);
}

/// question: supports() or supports_call().
void answer(Support (*question)(Problem const&, Options const&, Device), vcattn_problem const* problem, vcattn_options const* options,
            std::uint32_t device, std::uint32_t* supported, char* reason, std::size_t reason_bytes) {
  require(supported, "supported");
  to_bytes(reason, reason_bytes, "reason");
  give(question(to_problem(problem), to_options(options), to_device(device)), *supported, reason, reason_bytes);
}

struct GroupingInputs {
  TensorView v;
  std::span<std::int32_t const> seqused_k;
};

GroupingInputs to_inputs(vcattn_grouping const& c) {
  require_zero(c.reserved, "grouping.reserved");
  return {to_view<TensorView>(c.v, "grouping.v"), to_span(c.seqused_k, c.seqused_k_count, "grouping.seqused_k")};
}

GroupingSizes sizes_of(vcattn_grouping const* grouping, vcattn_options const* options, std::uint32_t device) {
  auto const [v, seqused_k] = to_inputs(read_struct(grouping, "grouping"));
  return grouping_sizes(v, to_options(options), seqused_k, to_device(device));
}

void group(vcattn_grouping const& c, Options const& options, Call const& call) {
  auto const [v, seqused_k] = to_inputs(c);
  GroupingBuffers const buffers{to_span(c.permutation, c.permutation_count, "grouping.permutation"),
                                to_span(c.centroids, c.centroids_count, "grouping.centroids"),
                                to_span(c.warm_centroids, c.warm_centroids_count, "grouping.warm_centroids")};
  (void)grouping_sizes(v, options, seqused_k, call.device);  // refuses shapes of which no extent could be told
  Extent const extent_of_v = extent_of(v, "grouping.v");
  Extent const permutation = extent_of(buffers.permutation, "grouping.permutation");
  Extent const centroids = extent_of(buffers.centroids, "grouping.centroids");
  Extent const warm_centroids = extent_of(buffers.warm_centroids, "grouping.warm_centroids");
  Extent const lengths = extent_of(seqused_k, "grouping.seqused_k");
  require_disjoint(permutation, {extent_of_v, centroids, warm_centroids, lengths});
  require_disjoint(centroids, {extent_of_v, lengths});
  if (buffers.centroids.data() != buffers.warm_centroids.data()) require_disjoint(centroids, {warm_centroids});
  require_disjoint(extent_of(call.workspace, "call.workspace"), {extent_of_v, permutation, centroids, warm_centroids, lengths});
  group_values(v, options, seqused_k, buffers, call);
}

}  // namespace
}  // namespace vcattn::c_api

using namespace vcattn::c_api;
using vcattn::Call;
using vcattn::Problem;

char const* vcattn_version(void) { return VCATTN_VERSION_STRING; }

uint32_t vcattn_abi_version(void) { return VCATTN_ABI_VERSION; }

char const* vcattn_last_error(void) { return last_error; }

vcattn_status vcattn_options_init(vcattn_options* options, char const* recipe) {
  return guarded([&] { write_options(vcattn::recipe_options(vcattn::parse_recipe(&require(recipe, "recipe"))), options); });
}

vcattn_status vcattn_options_set(vcattn_options* options, char const* key, char const* value) {
  return guarded([&] {
    vcattn::Options changed = to_options(options);
    vcattn::set_option(changed, &require(key, "key"), &require(value, "value"));
    write_options(changed, options);
  });
}

vcattn_status vcattn_supports(vcattn_problem const* problem, vcattn_options const* options, uint32_t device, uint32_t* supported,
                              char* reason, size_t reason_bytes) {
  return guarded([&] { answer(vcattn::supports, problem, options, device, supported, reason, reason_bytes); });
}

vcattn_status vcattn_supports_call(vcattn_problem const* problem, vcattn_options const* options, uint32_t device, uint32_t* supported,
                                   char* reason, size_t reason_bytes) {
  return guarded([&] { answer(vcattn::supports_call, problem, options, device, supported, reason, reason_bytes); });
}

vcattn_status vcattn_cuda_load_kernels(void) {
  return guarded([] { vcattn::load_cuda_kernels(); });
}

vcattn_status vcattn_call_workspace_size(vcattn_problem const* problem, vcattn_options const* options, uint32_t device,
                                         size_t* size_bytes) {
  return guarded([&] {
    require(size_bytes, "size_bytes") = vcattn::call_workspace_size_bytes(to_problem(problem), to_options(options), to_device(device));
  });
}

vcattn_status vcattn_cuda_available(uint32_t* available, char* reason, size_t reason_bytes) {
  return guarded([&] {
    require(available, "available");
    to_bytes(reason, reason_bytes, "reason");
    std::string const why_not = vcattn::cuda_unavailable_reason();
    *available = why_not.empty() ? 1 : 0;
    copy_text(why_not, reason, reason_bytes);
  });
}

vcattn_status vcattn_prepared_size(vcattn_problem const* problem, vcattn_options const* options, size_t* size_bytes) {
  return guarded([&] { require(size_bytes, "size_bytes") = vcattn::prepared_size_bytes(to_problem(problem), to_options(options)); });
}

vcattn_status vcattn_workspace_size(vcattn_problem const* problem, vcattn_options const* options, uint32_t device, size_t* size_bytes) {
  return guarded([&] {
    require(size_bytes, "size_bytes") = vcattn::workspace_size_bytes(to_problem(problem), to_options(options), to_device(device));
  });
}

vcattn_status vcattn_prepare(vcattn_problem const* problem, vcattn_options const* options, void* storage, size_t storage_bytes,
                             vcattn_call const* call, vcattn_prepared** prepared) {
  return guarded([&] {
    require(prepared, "prepared") = nullptr;
    Call const where = to_call(call);
    Problem const p = to_problem(problem);
    auto const bytes = to_bytes(storage, storage_bytes, "storage");
    require_disjoint(extent_of(bytes, "storage"), inputs_of(p));
    require_disjoint(extent_of(where.workspace, "call.workspace"), inputs_of(p));
    require_disjoint(extent_of(where.workspace, "call.workspace"), {extent_of(bytes, "storage")});
    *prepared = std::make_unique<vcattn_prepared>(vcattn_prepared{vcattn::prepare(p, to_options(options), bytes, where)}).release();
  });
}

vcattn_status vcattn_prepared_to_cuda(vcattn_prepared const* prepared, void* storage, size_t storage_bytes, vcattn_prepared** on_device) {
  return guarded([&] {
    require(on_device, "on_device") = nullptr;
    vcattn::Prepared const& source = require(prepared, "prepared").value;
    auto const bytes = to_bytes(storage, storage_bytes, "storage");
    *on_device = std::make_unique<vcattn_prepared>(vcattn_prepared{vcattn::to_cuda(source, bytes)}).release();
  });
}

vcattn_status vcattn_prepared_device(vcattn_prepared const* prepared, uint32_t* device) {
  return guarded([&] { require(device, "device") = static_cast<uint32_t>(require(prepared, "prepared").value.device()); });
}

vcattn_status vcattn_prepared_destroy(vcattn_prepared* prepared) {
  return guarded([&] { delete prepared; });
}

vcattn_status vcattn_prepared_bytes(vcattn_prepared const* prepared, size_t* size_bytes) {
  return guarded([&] { require(size_bytes, "size_bytes") = require(prepared, "prepared").value.size_bytes(); });
}

vcattn_status vcattn_prepared_permutation(vcattn_prepared const* prepared, int32_t const** permutation, int64_t* count) {
  return guarded(
      [&] { hand_out(require(prepared, "prepared").value.permutation(), &require(permutation, "permutation"), &require(count, "count")); });
}

vcattn_status vcattn_prepared_value_energy_removed(vcattn_prepared const* prepared, double* energy_removed) {
  return guarded([&] { require(energy_removed, "energy_removed") = require(prepared, "prepared").value.value_energy_removed(); });
}

vcattn_status vcattn_attention(vcattn_prepared const* prepared, vcattn_output const* output, void* workspace, size_t workspace_bytes,
                               vcattn_call const* call) {
  return guarded([&] {
    Call const where = to_call(call);
    if (!where.workspace.empty()) reject("call.workspace: NULL required, vcattn_attention() has an argument for it; pass it there");
    vcattn::Prepared const& problem = require(prepared, "prepared").value;
    require_device_of(problem, where.device);
    Output const out = to_output(output);
    auto const scratch = to_bytes(workspace, workspace_bytes, "workspace");
    require_disjoint(extent_of(scratch, "workspace"), {out.o_extent(), out.lse_extent()});
    vcattn::attention(problem, out.o, out.lse, scratch, where.stream);
  });
}

vcattn_status vcattn_attend(vcattn_problem const* problem, vcattn_options const* options, vcattn_output const* output,
                            vcattn_call const* call) {
  return guarded([&] {
    Call const where = to_call(call);
    Output const out = to_output(output);
    Problem const p = to_problem(problem);
    require_disjoint(out.o_extent(), inputs_of(p));
    require_disjoint(out.lse_extent(), inputs_of(p));
    require_disjoint(extent_of(where.workspace, "call.workspace"), inputs_of(p));
    require_disjoint(extent_of(where.workspace, "call.workspace"), {out.o_extent(), out.lse_extent()});
    vcattn::attend(p, to_options(options), out.o, out.lse, where);
  });
}

vcattn_status vcattn_default_clusters(int64_t seqlen_kv, uint32_t order, int32_t* clusters) {
  return guarded([&] {
    if (seqlen_kv < 0) reject("seqlen_kv: >= 0 required, got " + std::to_string(seqlen_kv) + "; pass the number of keys");
    require(clusters, "clusters") = vcattn::default_clusters(seqlen_kv, to_enum(order, vcattn::GroupOrder::chain_sorted, "order"));
  });
}

vcattn_status vcattn_group(vcattn_grouping const* grouping, vcattn_options const* options, vcattn_call const* call) {
  return guarded([&] { group(read_struct(grouping, "grouping"), to_options(options), to_call(call)); });
}

vcattn_status vcattn_group_workspace_size(vcattn_grouping const* grouping, vcattn_options const* options, uint32_t device,
                                          size_t* size_bytes) {
  return guarded([&] { require(size_bytes, "size_bytes") = sizes_of(grouping, options, device).workspace_bytes; });
}

vcattn_status vcattn_group_clusters(vcattn_grouping const* grouping, vcattn_options const* options, uint32_t device, int32_t* clusters) {
  return guarded([&] { require(clusters, "clusters") = sizes_of(grouping, options, device).clusters; });
}

vcattn_status vcattn_value_energy_removed(vcattn_tensor const* v, int32_t const* permutation, int64_t permutation_count, int32_t block,
                                          int32_t const* seqused_k, int64_t seqused_k_count, double* energy_removed,
                                          int64_t energy_removed_count) {
  return guarded([&] {
    auto const view = to_view<vcattn::TensorView>(require(v, "v"), "v");
    auto const out = to_span(energy_removed, energy_removed_count, "energy_removed");
    copy_exactly(vcattn::value_energy_removed(view, to_span(permutation, permutation_count, "permutation"), block,
                                              to_span(seqused_k, seqused_k_count, "seqused_k")),
                 out, "energy_removed");
  });
}

vcattn_status vcattn_schedule_create(uint32_t policy, int32_t refresh_interval, double group_fraction, vcattn_schedule** schedule) {
  return guarded([&] {
    require(schedule, "schedule") = nullptr;
    auto const checked_policy = to_enum(policy, vcattn::SchedulePolicy::every_step, "policy");
    *schedule =
        std::make_unique<vcattn_schedule>(vcattn_schedule{vcattn::GroupingSchedule(checked_policy, refresh_interval, group_fraction)})
            .release();
  });
}

vcattn_status vcattn_schedule_destroy(vcattn_schedule* schedule) {
  return guarded([&] { delete schedule; });
}

vcattn_status vcattn_schedule_decide(vcattn_schedule const* schedule, int64_t step, int64_t total_steps, int64_t layer, int64_t branch,
                                     uint32_t* action) {
  return guarded([&] {
    require(action, "action") = static_cast<uint32_t>(require(schedule, "schedule").value.decide(step, total_steps, {layer, branch}));
  });
}

vcattn_status vcattn_schedule_permutation(vcattn_schedule* schedule, int64_t step, int64_t total_steps, int64_t layer, int64_t branch,
                                          vcattn_tensor const* v, vcattn_options const* options, int32_t const* seqused_k,
                                          int64_t seqused_k_count, int32_t const** permutation, int64_t* count, vcattn_call const* call) {
  return guarded([&] {
    require(permutation, "permutation");
    require(count, "count");
    auto const view = to_view<vcattn::TensorView>(require(v, "v"), "v");
    Call const where = to_call(call);
    require_disjoint(extent_of(where.workspace, "call.workspace"), {extent_of(view, "v")});
    hand_out(require(schedule, "schedule")
                 .value.permutation(step, total_steps, {layer, branch}, view, to_options(options),
                                    to_span(seqused_k, seqused_k_count, "seqused_k"), where),
             permutation, count);
  });
}

vcattn_status vcattn_schedule_forget(vcattn_schedule* schedule, int64_t layer, int64_t branch) {
  return guarded([&] { require(schedule, "schedule").value.forget({layer, branch}); });
}

vcattn_status vcattn_schedule_clear(vcattn_schedule* schedule) {
  return guarded([&] { require(schedule, "schedule").value.clear(); });
}
