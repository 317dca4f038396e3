// Through the C ABI comes what comes through the C++ API, to the bit.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "c_api_case.hpp"
#include "vcattn/grouping.hpp"
#include "vcattn/version.hpp"

namespace vcattn {

static void PrintTo(Recipe recipe, std::ostream* out) { *out << recipe_name(recipe); }  // for the names of the tests

namespace test {
namespace {

void expect_ok(vcattn_status status) { EXPECT_EQ(status, VCATTN_OK) << vcattn_last_error(); }

struct Outputs {
  std::vector<float> o, lse;
  bool operator==(Outputs const& other) const { return same_bits(o, other.o) && same_bits(lse, other.lse); }
};

Outputs through_cpp(Case& c, Problem const& problem, Options const& options) {
  attend(problem, options, c.output_view(), c.lse);
  return {c.o, c.lse};
}

Outputs through_c(Case& c, vcattn_problem const& problem, vcattn_options const& options) {
  c.o.assign(c.o.size(), -1.0f);
  c.lse.assign(c.lse.size(), -1.0f);
  vcattn_output const output = c.c_output();
  expect_ok(vcattn_attend(&problem, &options, &output, nullptr));
  return {c.o, c.lse};
}

TEST(CApiVersion, IsThatOfTheHeaders) {
  EXPECT_STREQ(vcattn_version(), VCATTN_VERSION_STRING);
  EXPECT_EQ(vcattn_abi_version(), VCATTN_ABI_VERSION);
}

class CApiRecipe : public testing::TestWithParam<Recipe> {};

TEST_P(CApiRecipe, AttendEqualsCpp) {
  Case c;
  Outputs const expected = through_cpp(c, c.problem(), recipe_options(GetParam()));
  EXPECT_TRUE(through_c(c, c.c_problem(), c_options(recipe_name(GetParam()))) == expected);
}

TEST_P(CApiRecipe, PrepareAndAttentionInCallerMemoryEqualAttend) {
  Case c;
  vcattn_problem const problem = c.c_problem();
  vcattn_options const options = c_options(recipe_name(GetParam()));
  Outputs const expected = through_c(c, problem, options);

  std::size_t storage_bytes = 0, workspace_bytes = 0, prepared_bytes = 0;
  expect_ok(vcattn_prepared_size(&problem, &options, &storage_bytes));
  expect_ok(vcattn_workspace_size(&problem, &options, VCATTN_CPU, &workspace_bytes));
  AlignedBuffer storage(storage_bytes), workspace(workspace_bytes);
  vcattn_prepared* prepared = nullptr;
  expect_ok(vcattn_prepare(&problem, &options, storage.data(), storage_bytes, nullptr, &prepared));
  expect_ok(vcattn_prepared_bytes(prepared, &prepared_bytes));
  EXPECT_EQ(prepared_bytes, storage_bytes);

  c.o.assign(c.o.size(), -1.0f);
  c.lse.assign(c.lse.size(), -1.0f);
  vcattn_output const output = c.c_output();
  auto call = zeroed<vcattn_call>();
  void* const scratch = workspace_bytes > 0 ? workspace.data() : nullptr;
  expect_ok(vcattn_attention(prepared, &output, scratch, workspace_bytes, &call));
  EXPECT_TRUE((Outputs{c.o, c.lse}) == expected);
  expect_ok(vcattn_prepared_destroy(prepared));
}

INSTANTIATE_TEST_SUITE_P(All, CApiRecipe, testing::ValuesIn(all_recipes().begin(), all_recipes().end()), [](auto const& test) {
  std::string name(recipe_name(test.param));
  for (char& letter : name) letter = letter == '-' ? '_' : letter;
  return name;
});

TEST(CApiOptions, InitMirrorsEveryRecipe) {
  for (Recipe const recipe : all_recipes()) {
    vcattn_options const c = c_options(recipe_name(recipe));
    Options const options = recipe_options(recipe);
    EXPECT_EQ(c.recipe, static_cast<std::uint32_t>(options.recipe));
    EXPECT_EQ(c.qk, static_cast<std::uint32_t>(options.qk));
    EXPECT_EQ(c.prob, static_cast<std::uint32_t>(options.prob));
    EXPECT_EQ(c.exp_form, static_cast<std::uint32_t>(options.exp_form));
    EXPECT_EQ(c.top_code, options.top_code);
    EXPECT_EQ(c.v_mean != 0, options.v_mean);
    EXPECT_EQ(c.num_threads, options.num_threads);
  }
}

TEST(CApiOptions, SetChangesWhatTheCppOptionChanges) {
  Case c;
  Options options = recipe_options(Recipe::vc8s);
  vcattn_options c_version = c_options("vc8s");
  for (auto const& [key, value] :
       {std::pair{"hadamard", "off"}, {"block", "64"}, {"expcast", "paper"}, {"order", "label"}, {"clusters", "9"}}) {
    set_option(options, key, value);
    expect_ok(vcattn_options_set(&c_version, key, value));
  }
  Outputs const expected = through_cpp(c, c.problem(), options);
  EXPECT_TRUE(through_c(c, c.c_problem(), c_version) == expected);
  EXPECT_FALSE(through_c(c, c.c_problem(), c_options("vc8s")) == expected) << "the options must matter for this test to mean anything";
}

TEST(CApiProblem, SoftmaxScaleCausalAndSeqused) {
  Case c(2, 70, 130);
  std::vector<std::int32_t> const seqused{130, 41};
  Problem problem = c.problem();
  problem.softmax_scale = 0.25;
  problem.causal = true;
  problem.seqused_k = seqused;
  Options options = recipe_options(Recipe::vc8);
  vcattn_problem c_problem = c.c_problem();
  c_problem.has_softmax_scale = 1;
  c_problem.softmax_scale = 0.25;
  c_problem.causal = 1;
  c_problem.seqused_k = seqused.data();
  c_problem.seqused_k_count = 2;
  Outputs const expected = through_cpp(c, problem, options);
  EXPECT_TRUE(through_c(c, c_problem, c_options("vc8")) == expected);
  EXPECT_FALSE(through_c(c, c.c_problem(), c_options("vc8")) == expected) << "the fields must matter for this test to mean anything";
}

TEST(CApiProblem, Varlen) {
  Case c(1, 70, 130);
  std::vector<std::int32_t> const cu_q{0, 1, 70}, cu_k{0, 100, 130};
  Problem problem = c.problem();
  problem.cu_seqlens_q = cu_q;
  problem.cu_seqlens_k = cu_k;
  vcattn_problem c_problem = c.c_problem();
  c_problem.cu_seqlens_q = cu_q.data();
  c_problem.cu_seqlens_q_count = 3;
  c_problem.cu_seqlens_k = cu_k.data();
  c_problem.cu_seqlens_k_count = 3;
  Outputs const expected = through_cpp(c, problem, recipe_options(Recipe::vc8s));
  EXPECT_TRUE(through_c(c, c_problem, c_options("vc8s")) == expected);
}

TEST(CApiProblem, Rope) {
  Case c(1, 70, 130);
  std::int64_t const rows = 130, rotary_dim = 32;
  std::vector<float> cos_table, sin_table;
  for (std::int64_t i = 0; i < rows * rotary_dim / 2; ++i) {
    cos_table.push_back(std::cos(0.1f * static_cast<float>(i)));
    sin_table.push_back(std::sin(0.1f * static_cast<float>(i)));
  }
  Problem problem = c.problem();
  problem.rope = Rope{cos_table.data(), sin_table.data(), rows, rotary_dim, 16, RopeStyle::rotate_half};
  auto rope = zeroed<vcattn_rope>();
  rope.style = VCATTN_ROPE_ROTATE_HALF;
  rope.cos = cos_table.data();
  rope.sin = sin_table.data();
  rope.rows = rows;
  rope.rotary_dim = rotary_dim;
  rope.first_channel = 16;
  vcattn_problem c_problem = c.c_problem();
  c_problem.rope = &rope;
  Outputs const expected = through_cpp(c, problem, recipe_options(Recipe::sage2));
  EXPECT_TRUE(through_c(c, c_problem, c_options("sage2")) == expected);
}

TEST(CApiProblem, PermutationOfAPreparedProblemCanBeReused) {
  Case c;
  vcattn_problem problem = c.c_problem();
  vcattn_options options = c_options("vc8s");
  Outputs const expected = through_c(c, problem, options);

  vcattn_prepared* prepared = nullptr;
  expect_ok(vcattn_prepare(&problem, &options, nullptr, 0, nullptr, &prepared));
  double energy = -1.0;
  expect_ok(vcattn_prepared_value_energy_removed(prepared, &energy));
  EXPECT_GT(energy, 0.0);
  EXPECT_LT(energy, 1.0);
  expect_ok(vcattn_prepared_permutation(prepared, &problem.permutation, &problem.permutation_count));
  EXPECT_EQ(problem.permutation_count, c.keys());
  EXPECT_TRUE(through_c(c, problem, options) == expected);
  expect_ok(vcattn_prepared_destroy(prepared));
}

TEST(CApiProblem, OutputWithoutLse) {
  Case c;
  vcattn_problem const problem = c.c_problem();
  vcattn_options const options = c_options("exact");
  Outputs const expected = through_c(c, problem, options);
  c.o.assign(c.o.size(), -1.0f);
  vcattn_output output = c.c_output();
  output.lse = nullptr;
  output.lse_count = 0;
  expect_ok(vcattn_attend(&problem, &options, &output, nullptr));
  EXPECT_TRUE(same_bits(c.o, expected.o));
}

TEST(CApiProblem, NoKeys) {
  Case c(1, 5, 0);
  Outputs const result = through_c(c, c.c_problem(), c_options("vc8s"));
  for (float const value : result.o) EXPECT_EQ(value, 0.0f);
  for (float const value : result.lse) EXPECT_EQ(value, -INFINITY);
}

class CApiGrouping : public testing::Test {
 protected:
  static constexpr std::int32_t kClusters = 10;

  CApiGrouping() {
    options.clusters = kClusters;
    c_version.clusters = kClusters;
    permutation.resize(static_cast<std::size_t>(c.keys()));
    centroids.resize(static_cast<std::size_t>(2 * Case::kHeadsKv * kClusters * Case::kHeadDim));
  }

  vcattn_grouping grouping() {
    auto g = zeroed<vcattn_grouping>();
    g.v = to_c<vcattn_tensor>(c.problem().v);
    g.permutation = permutation.data();
    g.permutation_count = static_cast<std::int64_t>(permutation.size());
    g.seqused_k = seqused.data();
    g.seqused_k_count = 2;
    g.centroids = centroids.data();
    g.centroids_count = static_cast<std::int64_t>(centroids.size());
    return g;
  }

  Case c{2, 1, 400};
  std::vector<std::int32_t> const seqused{400, 333};
  Options options = recipe_options(Recipe::vc8s);
  vcattn_options c_version = c_options("vc8s");
  std::vector<std::int32_t> permutation;
  std::vector<float> centroids;
};

TEST_F(CApiGrouping, ColdEqualsCpp) {
  GroupingState const expected = group_values(c.problem().v, options, seqused);
  vcattn_grouping const g = grouping();
  expect_ok(vcattn_group(&g, &c_version, nullptr));
  EXPECT_EQ(permutation, expected.permutation);
  EXPECT_TRUE(same_bits(centroids, expected.centroids));
}

TEST_F(CApiGrouping, WarmInPlaceEqualsCpp) {
  GroupingState const cold = group_values(c.problem().v, options, seqused);
  for (float& value : c.values()) value = value * 0.9f + 0.05f;
  GroupingState const expected = group_values(c.problem().v, options, seqused, &cold);
  centroids = cold.centroids;
  vcattn_grouping g = grouping();
  g.warm_centroids = centroids.data();
  g.warm_centroids_count = g.centroids_count;
  expect_ok(vcattn_group(&g, &c_version, nullptr));
  EXPECT_EQ(permutation, expected.permutation);
  EXPECT_TRUE(same_bits(centroids, expected.centroids));
}

TEST_F(CApiGrouping, CentroidsMayBeLeftOut) {
  GroupingState const expected = group_values(c.problem().v, options, seqused);
  vcattn_grouping g = grouping();
  g.centroids = nullptr;
  g.centroids_count = 0;
  expect_ok(vcattn_group(&g, &c_version, nullptr));
  EXPECT_EQ(permutation, expected.permutation);
}

TEST_F(CApiGrouping, DefaultClustersAreWhatGroupMakes) {
  for (std::uint32_t const order : {VCATTN_ORDER_LABEL, VCATTN_ORDER_CHAIN, VCATTN_ORDER_CHAIN_SORTED, VCATTN_ORDER_AUTOMATIC}) {
    c_version.clusters = 0;
    c_version.order = order;
    std::int32_t clusters = 0;
    expect_ok(vcattn_default_clusters(400, order, &clusters));
    centroids.resize(static_cast<std::size_t>(2 * Case::kHeadsKv * clusters * Case::kHeadDim));
    vcattn_grouping const g = grouping();
    expect_ok(vcattn_group(&g, &c_version, nullptr));
  }
}

TEST_F(CApiGrouping, ClustersEqualCpp) {
  for (char const* const recipe : {"vc8s", "vc8-paper", "sage2"}) {
    Options const chosen = recipe_options(parse_recipe(recipe));
    vcattn_options const same = c_options(recipe);
    vcattn_grouping const g = grouping();
    std::int32_t clusters = -1;
    expect_ok(vcattn_group_clusters(&g, &same, VCATTN_CPU, &clusters));
    EXPECT_EQ(clusters, grouping_sizes(c.problem().v, chosen, seqused).clusters) << recipe;
  }
}

TEST_F(CApiGrouping, EnergyEqualsCpp) {
  vcattn_grouping const g = grouping();
  expect_ok(vcattn_group(&g, &c_version, nullptr));
  std::vector<double> const expected = value_energy_removed(c.problem().v, permutation, 64, seqused);
  std::vector<double> energy(2);
  expect_ok(vcattn_value_energy_removed(&g.v, permutation.data(), g.permutation_count, 64, seqused.data(), 2, energy.data(), 2));
  EXPECT_TRUE(same_bits(energy, expected));
  expect_ok(vcattn_value_energy_removed(&g.v, nullptr, 0, 64, seqused.data(), 2, energy.data(), 2));
  EXPECT_TRUE(same_bits(energy, value_energy_removed(c.problem().v, {}, 64, seqused)));
}

TEST_F(CApiGrouping, ScheduleEqualsCpp) {
  constexpr std::int64_t kSteps = 20, kLayer = 3;
  GroupingSchedule expected(SchedulePolicy::first_quarter, 2, 0.25);
  vcattn_schedule* schedule = nullptr;
  expect_ok(vcattn_schedule_create(VCATTN_SCHEDULE_FIRST_QUARTER, 2, 0.25, &schedule));
  vcattn_tensor const v = to_c<vcattn_tensor>(c.problem().v);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (std::int64_t const branch : {0, 1}) {
      std::uint32_t action = 99;
      expect_ok(vcattn_schedule_decide(schedule, step, kSteps, kLayer, branch, &action));
      EXPECT_EQ(action, static_cast<std::uint32_t>(expected.decide(step, kSteps, {kLayer, branch})));
      std::int32_t const* pointer = nullptr;
      std::int64_t count = -1;
      expect_ok(vcattn_schedule_permutation(schedule, step, kSteps, kLayer, branch, &v, &c_version, seqused.data(), 2, &pointer, &count,
                                            nullptr));
      auto const span = expected.permutation(step, kSteps, {kLayer, branch}, c.problem().v, options, seqused);
      EXPECT_TRUE(same_bits(span, std::span(pointer, static_cast<std::size_t>(count))));
    }
    for (float& value : c.values()) value = value * 0.99f;
  }
  auto const action_of = [&](std::int64_t branch) {
    std::uint32_t action = 99;
    expect_ok(vcattn_schedule_decide(schedule, kSteps - 1, kSteps, kLayer, branch, &action));
    return action;
  };
  EXPECT_EQ(action_of(0), VCATTN_ACTION_REUSE);
  expect_ok(vcattn_schedule_forget(schedule, kLayer, 0));
  EXPECT_EQ(action_of(0), VCATTN_ACTION_SEQUENCE_ORDER);
  EXPECT_EQ(action_of(1), VCATTN_ACTION_REUSE);
  expect_ok(vcattn_schedule_clear(schedule));
  EXPECT_EQ(action_of(1), VCATTN_ACTION_SEQUENCE_ORDER);
  expect_ok(vcattn_schedule_destroy(schedule));
}

}  // namespace
}  // namespace test
}  // namespace vcattn
