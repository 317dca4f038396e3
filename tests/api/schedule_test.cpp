#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "grouping/values.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::test {
namespace {

using Key = GroupingSchedule::Key;
using Actions = std::vector<GroupingAction>;

constexpr auto kSequence = GroupingAction::sequence_order;
constexpr auto kCold = GroupingAction::regroup_cold;
constexpr auto kWarm = GroupingAction::regroup_warm;
constexpr auto kReuse = GroupingAction::reuse;

constexpr Key kKey{3, 1};

class Schedule : public testing::Test {
 protected:
  Values values = video_values(2, 1, 7, 32);
  Options options = grouping_options(GroupOrder::chain_sorted, 4);

  /// Runs steps first..total-1 and reports what each decided.
  Actions run(GroupingSchedule& schedule, std::int64_t total, std::int64_t first = 0) {
    Actions actions;
    for (std::int64_t step = first; step < total; ++step) {
      actions.push_back(schedule.decide(step, total, kKey));
      schedule.permutation(step, total, kKey, values.view(), options);
    }
    return actions;
  }
};

TEST_F(Schedule, Never) {
  GroupingSchedule schedule(SchedulePolicy::never);
  EXPECT_EQ(run(schedule, 3), (Actions{kSequence, kSequence, kSequence}));
  EXPECT_EQ(schedule.state(kKey), nullptr);
}

TEST_F(Schedule, EveryStep) {
  GroupingSchedule schedule(SchedulePolicy::every_step);
  EXPECT_EQ(run(schedule, 4), (Actions{kCold, kWarm, kWarm, kWarm}));
}

TEST_F(Schedule, FirstQuarterRefreshesInsideTheWindowOnly) {
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2);
  EXPECT_EQ(run(schedule, 17), (Actions{kCold, kReuse, kWarm, kReuse, kWarm, kReuse, kReuse, kReuse, kReuse, kReuse, kReuse, kReuse, kReuse,
                                        kReuse, kReuse, kReuse, kReuse}));
}

TEST_F(Schedule, TheWindowIsRoundedUp) {
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 1);
  EXPECT_EQ(run(schedule, 5), (Actions{kCold, kWarm, kReuse, kReuse, kReuse}));
}

TEST_F(Schedule, FractionZeroNeverGroupsAndOneAlwaysMay) {
  GroupingSchedule none(SchedulePolicy::first_quarter, 1, 0.0);
  EXPECT_EQ(run(none, 2), (Actions{kSequence, kSequence}));
  GroupingSchedule all(SchedulePolicy::first_quarter, 3, 1.0);
  EXPECT_EQ(run(all, 5), (Actions{kCold, kReuse, kReuse, kWarm, kReuse}));
}

TEST_F(Schedule, AResumedGenerationGroupsColdInsideTheWindowAndNotAfterIt) {
  GroupingSchedule inside(SchedulePolicy::first_quarter, 4);
  EXPECT_EQ(run(inside, 9, 1), (Actions{kCold, kReuse, kReuse, kReuse, kReuse, kReuse, kReuse, kReuse}));
  GroupingSchedule after(SchedulePolicy::first_quarter, 4);
  EXPECT_EQ(run(after, 9, 3), Actions(6, kSequence));
}

TEST_F(Schedule, TheNextGenerationStartsCold) {
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2);
  run(schedule, 12);
  EXPECT_EQ(run(schedule, 12, 0).front(), kCold);
  GroupingSchedule every(SchedulePolicy::every_step);
  run(every, 3);
  EXPECT_EQ(run(every, 3), (Actions{kCold, kWarm, kWarm}));
}

TEST_F(Schedule, DecideNeedsNoValuesAndChangesNothing) {
  GroupingSchedule const schedule;
  EXPECT_EQ(schedule.decide(0, 8, kKey), kCold);
  EXPECT_EQ(schedule.decide(0, 8, kKey), kCold);
  expect_invalid_argument([&] { schedule.decide(8, 8, kKey); });
  expect_invalid_argument([&] { schedule.decide(-1, 8, kKey); });
  expect_invalid_argument([&] { schedule.decide(0, 0, kKey); });
}

TEST_F(Schedule, PermutationsAreThoseOfGroupValues) {
  GroupingSchedule schedule(SchedulePolicy::every_step);
  auto const first = schedule.permutation(0, 2, kKey, values.view(), options);
  GroupingState const cold = group_values(values.view(), options);
  EXPECT_EQ(std::vector(first.begin(), first.end()), cold.permutation);
  Values const next = normal_values(values.shape, 8);
  auto const second = schedule.permutation(1, 2, kKey, next.view(), options);
  EXPECT_EQ(std::vector(second.begin(), second.end()), group_values(next.view(), options, {}, &cold).permutation);
}

TEST_F(Schedule, ReuseReturnsTheStoredPermutation) {
  GroupingSchedule schedule;
  schedule.permutation(0, 40, kKey, values.view(), options);
  std::vector<std::int32_t> const stored = schedule.state(kKey)->permutation;
  Values const other = normal_values(values.shape, 9);
  auto const reused = schedule.permutation(1, 40, kKey, other.view(), options);
  EXPECT_EQ(std::vector(reused.begin(), reused.end()), stored);
}

TEST_F(Schedule, KeysAreIndependent) {
  GroupingSchedule schedule;
  schedule.permutation(0, 40, {0, 0}, values.view(), options);
  EXPECT_EQ(schedule.decide(1, 40, {0, 0}), kReuse);
  EXPECT_EQ(schedule.decide(1, 40, {0, 1}), kCold);
  EXPECT_EQ(schedule.decide(1, 40, {1, 0}), kCold);
  schedule.permutation(0, 40, {0, 1}, values.view(), options);
  schedule.forget({0, 0});
  EXPECT_EQ(schedule.state({0, 0}), nullptr);
  EXPECT_NE(schedule.state({0, 1}), nullptr);
  schedule.clear();
  EXPECT_EQ(schedule.state({0, 1}), nullptr);
}

TEST_F(Schedule, RefusesAStateThatDoesNotFit) {
  GroupingSchedule schedule(SchedulePolicy::first_quarter, 2);
  schedule.permutation(0, 40, kKey, values.view(), options);
  Values const longer = video_values(3, 1, 7, 32);
  std::vector<std::int32_t> const fewer_keys{500};
  for (std::int64_t const step : {1, 2, 30}) {  // reuse, warm start, reuse after the window
    expect_invalid_argument([&] { schedule.permutation(step, 40, kKey, longer.view(), options); });
    expect_invalid_argument([&] { schedule.permutation(step, 40, kKey, values.view(), options, fewer_keys); });
  }
  schedule.forget(kKey);
  EXPECT_EQ(schedule.permutation(1, 40, kKey, longer.view(), options).size(), 768u);
}

TEST_F(Schedule, RefusesImpossibleSettings) {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  expect_invalid_argument([] { GroupingSchedule(SchedulePolicy::first_quarter, 0); });
  expect_invalid_argument([] { GroupingSchedule(SchedulePolicy::first_quarter, 4, -0.1); });
  expect_invalid_argument([] { GroupingSchedule(SchedulePolicy::first_quarter, 4, 1.1); });
  expect_invalid_argument([&] { GroupingSchedule(SchedulePolicy::first_quarter, 4, nan); });
}

}  // namespace
}  // namespace vcattn::test
