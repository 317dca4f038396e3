#include <fmt/format.h>

#include <cmath>

#include "device/cuda/runtime.hpp"
#include "dispatch/validate.hpp"
#include "grouping/state_fit.hpp"
#include "grouping/value_rows.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn {

GroupingSchedule::GroupingSchedule(SchedulePolicy policy, std::int32_t refresh_interval, double group_fraction)
    : policy_(policy), refresh_interval_(refresh_interval), group_fraction_(group_fraction) {
  if (refresh_interval < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("refresh_interval must be at least 1 step, got {}: pass e.g. 4", refresh_interval));
  }
  if (!(group_fraction >= 0.0 && group_fraction <= 1.0)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("group_fraction must lie in 0..1, got {}: pass e.g. 0.25", group_fraction));
  }
}

GroupingAction GroupingSchedule::decide(std::int64_t step, std::int64_t total_steps, Key key) const {
  if (step < 0 || step >= total_steps) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("step must lie in 0..total_steps-1 = {}, got {}: count from 0", total_steps - 1, step));
  }
  if (policy_ == SchedulePolicy::never) return GroupingAction::sequence_order;
  auto const entry = entries_.find(key);
  // A state from a later step belongs to an earlier generation.
  bool const known = entry != entries_.end() && entry->second.last_grouped_step <= step;
  if (policy_ == SchedulePolicy::every_step) return known ? GroupingAction::regroup_warm : GroupingAction::regroup_cold;
  bool const may_group = static_cast<double>(step) < std::ceil(group_fraction_ * static_cast<double>(total_steps));
  if (!may_group) return known ? GroupingAction::reuse : GroupingAction::sequence_order;
  if (!known) return GroupingAction::regroup_cold;
  return step % refresh_interval_ == 0 ? GroupingAction::regroup_warm : GroupingAction::reuse;
}

namespace {

grouping::StatePlace place_of(Call const& call) {
  if (call.device == Device::cpu) return {};
  device::cuda::require_device();
  return {call.device, device::cuda::current_device()};
}

}  // namespace

std::span<std::int32_t const> GroupingSchedule::permutation(std::int64_t step, std::int64_t total_steps, Key key, TensorView const& v,
                                                            Options const& options, std::span<std::int32_t const> seqused_k,
                                                            Call const& call) {
  dispatch::check_device(call.device);
  GroupingAction const action = decide(step, total_steps, key);
  if (action == GroupingAction::sequence_order) return {};
  auto const valid_rows = grouping::checked_valid_rows(v, seqused_k);
  grouping::StatePlace const place = place_of(call);
  auto const found = entries_.find(key);
  GroupingState const* const kept = found == entries_.end() ? nullptr : &found->second.state;
  if (action == GroupingAction::reuse) {
    grouping::check_state_fits(*kept, v, valid_rows, place);
    return kept->permutation_view();
  }
  bool const warm = action == GroupingAction::regroup_warm;
  if (call.device == Device::cuda && kept != nullptr) {
    // In place, so that a warm start, and the cold start of another generation, allocate nothing.
    std::int32_t const clusters = grouping_sizes(v, options, seqused_k, call.device).clusters;
    if (warm) grouping::check_warm_state(*kept, v, valid_rows, clusters, place);
    if (warm || (grouping::misfit(*kept, v, valid_rows, place).empty() && kept->clusters == clusters)) {
      GroupingBuffers buffers = grouping::device_buffers(*kept);
      if (warm) buffers.warm_centroids = buffers.centroids;
      group_values(v, options, seqused_k, buffers, call);
      found->second.last_grouped_step = step;
      return kept->permutation_view();
    }
  }
  GroupingState next = group_values(v, options, seqused_k, warm ? kept : nullptr, call);
  Entry& entry = entries_[key];
  entry = {std::move(next), step};
  return entry.state.permutation_view();
}

GroupingState const* GroupingSchedule::state(Key key) const {
  auto const entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : &entry->second.state;
}

void GroupingSchedule::forget(Key key) { entries_.erase(key); }

void GroupingSchedule::clear() { entries_.clear(); }

}  // namespace vcattn
