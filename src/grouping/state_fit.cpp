#include "grouping/state_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace vcattn::grouping {

namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view required, std::string_view got) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("grouping state must have been made with {} {}, got a state with {}: forget it and group again", what, required, got));
}

void require_equal(std::string_view what, std::int64_t required, std::int64_t got) {
  if (required != got) refuse(what, std::to_string(required), std::to_string(got));
}

}  // namespace

void check_state_fits(GroupingState const& state, TensorView const& v, std::span<std::int32_t const> valid_rows) {
  require_equal("batch", v.batch(), state.batch);
  require_equal("seqlen_kv", v.seqlen(), state.seqlen_kv);
  require_equal("num_heads_kv", v.num_heads(), state.num_heads_kv);
  require_equal("head_dim", v.head_dim(), state.head_dim);
  if (state.dtype != v.dtype) refuse("dtype", dtype_name(v.dtype), dtype_name(state.dtype));
  if (!std::ranges::equal(state.seqused_k, valid_rows)) {
    refuse("seqused_k", fmt::format("[{}]", fmt::join(valid_rows, ", ")), fmt::format("[{}]", fmt::join(state.seqused_k, ", ")));
  }
  require_equal("permutation entries", v.batch() * v.num_heads() * v.seqlen(), std::ssize(state.permutation));
  require_equal("centroid values", v.batch() * v.num_heads() * state.clusters * v.head_dim(), std::ssize(state.centroids));
}

}  // namespace vcattn::grouping
