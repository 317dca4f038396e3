#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "values.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::test {
namespace {

struct Case {
  Values values;
  Options options;
  std::vector<std::int32_t> seqused;
};

Case any_case() {
  Shape const shape{*rc::gen::inRange<std::int64_t>(1, 3), *rc::gen::inRange<std::int64_t>(0, 400), *rc::gen::inRange<std::int64_t>(1, 3),
                    8 * *rc::gen::inRange<std::int64_t>(1, 6)};
  Case c{normal_values(shape, *rc::gen::arbitrary<unsigned>()), {}, {}};
  c.options.order = *rc::gen::element(GroupOrder::sequence, GroupOrder::label, GroupOrder::chain, GroupOrder::chain_sorted);
  c.options.clusters = *rc::gen::inRange(0, 40);
  c.options.iterations = *rc::gen::inRange(1, 5);
  c.options.v_block = *rc::gen::element(32, 64, 128);
  c.options.num_threads = *rc::gen::inRange(0, 4);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    c.seqused.push_back(static_cast<std::int32_t>(*rc::gen::inRange<std::int64_t>(0, shape.seqlen + 1)));
  }
  return c;
}

RC_GTEST_PROP(GroupValuesProperty, PermutationsAreValidAndRepeatable, ()) {
  Case const c = any_case();
  GroupingState const state = group_values(c.values.view(), c.options, c.seqused);
  RC_ASSERT(is_valid_permutation(state));
  Options other_threads = c.options;
  other_threads.num_threads = 1;
  GroupingState const again = group_values(c.values.view(), other_threads, c.seqused);
  RC_ASSERT(again.permutation == state.permutation);
  RC_ASSERT(again.centroids == state.centroids);
}

RC_GTEST_PROP(GroupValuesProperty, AnyPermutationOfItsOwnStateCanBeWarmStarted, ()) {
  Case const c = any_case();
  GroupingState const cold = group_values(c.values.view(), c.options, c.seqused);
  GroupingState const warm = group_values(c.values.view(), c.options, c.seqused, &cold);
  RC_ASSERT(is_valid_permutation(warm));
  RC_ASSERT(warm.centroids.size() == cold.centroids.size());
}

/// Energies are shares: between 0 and 1 whatever the order.
RC_GTEST_PROP(GroupValuesProperty, EnergiesAreShares, ()) {
  Case const c = any_case();
  GroupingState const state = group_values(c.values.view(), c.options, c.seqused);
  for (double const removed : value_energy_removed(c.values.view(), state.permutation, c.options.v_block, c.seqused)) {
    RC_ASSERT(removed >= -1e-12);
    RC_ASSERT(removed <= 1.0 + 1e-12);
  }
}

}  // namespace
}  // namespace vcattn::test
