// Grouping through a Call: on the CPU the results of group_values(), without a usable GPU clear refusals.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "grouping/values.hpp"
#include "vcattn/grouping.hpp"
#include "without_gpus.hpp"

namespace vcattn::test {
namespace {

template <typename Body>
void expect_error(ErrorCode code, std::string const& text, Body const& body) {
  try {
    body();
    FAIL() << "no error was thrown";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << "'" << error.what() << "' should say " << text;
  }
}

class GroupingCall : public testing::Test {
 protected:
  GroupingBuffers buffers() { return {permutation, centroids}; }

  Values values = normal_values({2, 300, 3, 40}, 1);
  TensorView const v = values.view();
  Options options = grouping_options(GroupOrder::chain_sorted, 5);
  std::vector<std::int32_t> const seqused{300, 211};
  GroupingSizes const sizes = grouping_sizes(v, options, seqused);
  std::vector<std::int32_t> permutation = std::vector<std::int32_t>(sizes.permutation, -1);
  std::vector<float> centroids = std::vector<float>(sizes.centroids, -1.0f);
  Call const cuda{Device::cuda, nullptr, {}};
};

TEST_F(GroupingCall, SizesAreThoseOfTheState) {
  for (GroupOrder const order : {GroupOrder::sequence, GroupOrder::label, GroupOrder::chain_sorted, GroupOrder::automatic}) {
    for (std::int32_t const clusters : {0, 7, 400}) {
      options = grouping_options(order, clusters);
      GroupingSizes const wanted = grouping_sizes(v, options, seqused);
      GroupingState const state = group_values(v, options, seqused);
      EXPECT_EQ(wanted.clusters, state.clusters);
      EXPECT_EQ(wanted.permutation, state.permutation.size());
      EXPECT_EQ(wanted.centroids, state.centroids.size());
      EXPECT_EQ(wanted.workspace_bytes, 0u);
    }
  }
}

TEST_F(GroupingCall, BuffersGetWhatAStateHolds) {
  group_values(v, options, seqused, buffers(), {});
  GroupingState const cold = group_values(v, options, seqused);
  EXPECT_EQ(permutation, cold.permutation);
  EXPECT_EQ(centroids, cold.centroids);
  EXPECT_EQ(cold.permutation_view().data(), cold.permutation.data());
  EXPECT_EQ(cold.centroids_view().size(), cold.centroids.size());

  for (float& x : values.data) x = 0.9f * x + 0.05f;
  GroupingState const warm = group_values(v, options, seqused, &cold);
  expect_same_state(group_values(v, options, seqused, &cold, {}), warm);
  group_values(v, options, seqused, {permutation, centroids, centroids}, {});
  EXPECT_EQ(permutation, warm.permutation);
  EXPECT_EQ(centroids, warm.centroids);
  group_values(v, options, seqused, {permutation, {}, cold.centroids}, {});
  EXPECT_EQ(permutation, warm.permutation);
}

TEST_F(GroupingCall, RefusesArraysOfAnotherSize) {
  auto const refused = [&](GroupingBuffers const& wrong, char const* name) {
    expect_error(ErrorCode::invalid_argument, name, [&] { group_values(v, options, seqused, wrong, {}); });
  };
  std::span<std::int32_t> const keys = permutation;
  std::span<float> const means = centroids;
  refused({keys.first(keys.size() - 1), {}, {}}, "grouping.permutation");
  refused({{}, means, {}}, "grouping.permutation");
  refused({keys, means.first(means.size() - 1), {}}, "grouping.centroids");
  refused({keys, means, means.first(means.size() - 40)}, "grouping.warm_centroids");
}

TEST_F(GroupingCall, RefusesShapesWhoseProductsOverflow) {
  TensorView huge = v;
  huge.shape = {0, std::int64_t{1} << 30, std::int64_t{1} << 30, std::int64_t{1} << 30};
  expect_error(ErrorCode::invalid_argument, "check the shape", [&] { (void)grouping_sizes(huge, options); });
}

TEST_F(GroupingCall, RefusesStridesBeyondMemory) {
  for (std::int64_t const stride :
       {std::int64_t{1} << 61, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    TensorView far = v;
    far.stride[1] = stride;
    expect_error(ErrorCode::invalid_argument, "spans more than", [&] { (void)group_values(far, options); });
    expect_error(ErrorCode::invalid_argument, "spans more than", [&] { (void)grouping_sizes(far, options); });
  }
}

TEST_F(GroupingCall, RefusesADeviceThatIsNone) {
  Call const nowhere{static_cast<Device>(7), nullptr, {}};
  GroupingSchedule schedule;
  for (auto const& body : std::vector<std::function<void()>>{[&] { (void)grouping_sizes(v, options, seqused, nowhere.device); },
                                                             [&] { group_values(v, options, seqused, buffers(), nowhere); },
                                                             [&] { (void)group_values(v, options, seqused, nullptr, nowhere); },
                                                             [&] { (void)schedule.permutation(39, 40, {}, v, options, {}, nowhere); }}) {
    expect_error(ErrorCode::invalid_argument, "device must be cpu or cuda", body);
  }
}

TEST_F(GroupingCall, NeedsADevice) {
  GroupingState const state = group_values(v, options, seqused);
  auto const refused = [&](auto const& body) { expect_error(ErrorCode::unsupported, "use device cpu", body); };
  refused([&] { (void)grouping_sizes(v, options, seqused, Device::cuda); });
  refused([&] { (void)group_values(v, options, seqused, nullptr, cuda); });
  refused([&] { (void)group_values(v, options, seqused, &state, cuda); });
  refused([&] { group_values(v, options, seqused, buffers(), cuda); });
  std::vector<std::int32_t> const wrong{300, 301};  // looked at before the device
  expect_error(ErrorCode::invalid_argument, "seqused_k", [&] { (void)grouping_sizes(v, options, wrong, Device::cuda); });
}

TEST_F(GroupingCall, AScheduleNeedsADeviceWhereItGroups) {
  GroupingSchedule never(SchedulePolicy::never);
  EXPECT_TRUE(never.permutation(0, 2, {}, v, options, seqused, cuda).empty());
  GroupingSchedule schedule(SchedulePolicy::every_step);
  expect_error(ErrorCode::unsupported, "use device cpu", [&] { (void)schedule.permutation(0, 2, {}, v, options, seqused, cuda); });
  EXPECT_EQ(schedule.state({}), nullptr);
  EXPECT_EQ(schedule.decide(1, 2, {}), GroupingAction::regroup_cold);
  auto const on_cpu = schedule.permutation(0, 2, {}, v, options, seqused);
  EXPECT_EQ(std::vector(on_cpu.begin(), on_cpu.end()), group_values(v, options, seqused).permutation);
}

}  // namespace
}  // namespace vcattn::test
