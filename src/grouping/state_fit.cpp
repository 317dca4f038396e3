#include "grouping/state_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace vcattn::grouping {

namespace {

std::string difference(std::string_view what, std::string_view required, std::string_view got) {
  return fmt::format("grouping state must have been made with {} {}, got a state with {}: forget it and group again", what, required, got);
}

std::string place_name(StatePlace place) { return place.device == Device::cpu ? "cpu" : fmt::format("cuda {}", place.ordinal); }

std::string list(std::span<std::int32_t const> values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

}  // namespace

GroupingState empty_state(TensorView const& v, std::span<std::int32_t const> valid_rows, std::int32_t clusters, StatePlace place) {
  GroupingState state;
  state.batch = v.batch();
  state.num_heads_kv = v.num_heads();
  state.seqlen_kv = v.seqlen();
  state.head_dim = v.head_dim();
  state.dtype = v.dtype;
  state.clusters = clusters;
  state.seqused_k.assign(valid_rows.begin(), valid_rows.end());
  state.device = place.device;
  state.device_ordinal = place.ordinal;
  return state;
}

GroupingBuffers device_buffers(GroupingState const& state) {
  auto* const memory = static_cast<std::byte*>(state.device_memory.get());
  auto const permutation = state.permutation_view();
  return {{reinterpret_cast<std::int32_t*>(memory), permutation.size()},
          {reinterpret_cast<float*>(memory + permutation.size_bytes()), state.centroids_view().size()}};
}

std::string misfit(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, StatePlace place) {
  std::int64_t const heads = v.batch() * v.num_heads();
  struct Count {
    char const* what;
    std::int64_t required, got;
  };
  for (Count const& count : {Count{"batch", v.batch(), state.batch}, Count{"seqlen_kv", v.seqlen(), state.seqlen_kv},
                             Count{"num_heads_kv", v.num_heads(), state.num_heads_kv}, Count{"head_dim", v.head_dim(), state.head_dim},
                             Count{"permutation entries", heads * v.seqlen(), std::ssize(state.permutation_view())},
                             Count{"centroid values", heads * state.clusters * v.head_dim(), std::ssize(state.centroids_view())}}) {
    if (count.required != count.got) return difference(count.what, std::to_string(count.required), std::to_string(count.got));
  }
  if (state.dtype != v.dtype) return difference("dtype", dtype_name(v.dtype), dtype_name(state.dtype));
  if (!std::ranges::equal(state.seqused_k, valid_rows)) return difference("seqused_k", list(valid_rows), list(state.seqused_k));
  if (state.device == Device::cuda && !state.permutation_view().empty() && state.device_memory == nullptr)
    return "a grouping state of a CUDA device needs its device memory, got one without: forget it and group again";
  std::string const required = place_name(place);
  std::string const got = place_name({state.device, state.device_ordinal});
  return required == got ? "" : difference("device", required, got);
}

void check_state_fits(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, StatePlace place) {
  std::string const text = misfit(state, v, valid_rows, place);
  if (!text.empty()) throw Error(ErrorCode::invalid_argument, text);
}

void check_warm_state(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows, std::int32_t clusters,
                      StatePlace place) {
  check_state_fits(state, v, valid_rows, place);
  if (state.clusters == clusters) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a warm start needs a state with {} clusters, got {}: group from a cold start, or keep "
                          "`order` and `clusters` as they were",
                          clusters, state.clusters));
}

}  // namespace vcattn::grouping
