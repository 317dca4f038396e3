// Recipes of the reference against exact attention, and what holds for every recipe.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "problems.hpp"
#include "reference/attention.hpp"

namespace vcattn {
namespace {

using namespace testing_support;
using reference::AttentionResult;
using reference::exact_attention;
using reference::recipe_attention;

class EveryRecipe : public testing::TestWithParam<Recipe> {
 protected:
  Options options() const { return recipe_options(GetParam()); }
};
std::string recipe_test_name(testing::TestParamInfo<Recipe> const& param) {
  std::string name(recipe_name(param.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, testing::ValuesIn(all_recipes().begin(), all_recipes().end()), recipe_test_name);

/// Largest relative L2 error on N(0,1) inputs that the numerical contract allows.
double tolerance_of(Options const& options) {
  if (options.qk == QkFormat::f32) return 1e-6;
  if (options.qk == QkFormat::bf16)
    return 5e-3;  // a quantised operand on N(0,1): the 2e-3 of the contract is for the BF16 rounding of P and V alone
  if (options.qk == QkFormat::int8) return 0.045;
  if (options.qk == QkFormat::e4m3) return 0.063;
  return 0.25;  // 4-bit
}

/// Largest error of a single lse, in nats: mostly what rounding Q and K does to the scores.
double lse_tolerance_of(Options const& options) {
  if (options.qk == QkFormat::f32) return 1e-5;
  if (options.qk == QkFormat::bf16) return 2e-3;
  if (options.qk == QkFormat::int8) return 0.02;
  return options.qk == QkFormat::e4m3 ? 0.04 : 0.12;
}

TEST_P(EveryRecipe, IsNearExactAttention) {
  for (std::int64_t const head_dim : {64, 128}) {
    OwnedProblem owned = OwnedProblem::normal({1, 61, 307, 2, 1, head_dim}, 11);
    owned.round_to_bf16();
    AttentionResult const exact = exact_attention(owned.problem());
    AttentionResult const result = recipe_attention(owned.problem(), options());
    double const error = relative_l2(result.o, exact.o);
    EXPECT_LE(error, tolerance_of(options())) << "head_dim " << head_dim;
    if (GetParam() != Recipe::exact) {
      EXPECT_GT(error, 1e-4) << "a recipe that rounds nothing is not being tested";
    }
    EXPECT_LE(max_abs_difference(result.lse, exact.lse), lse_tolerance_of(options())) << "head_dim " << head_dim;
  }
}

/// Contract: a constant V comes out constant, because row sums are sums of the probabilities that P V consumes.
TEST_P(EveryRecipe, ConstantValuesComeOutConstant) {
  OwnedProblem owned = OwnedProblem::normal({1, 13, 200, 1, 1, 64}, 12);
  for (std::size_t i = 0; i < owned.v.size(); ++i) owned.v[i] = 0.75f * static_cast<float>(i % 64) - 20.0f;
  Options constant = options();
  // Without block means each channel must be the largest of its own descale to be exact: one value in all channels.
  if (!constant.v_mean && constant.v != VFormat::f32) std::fill(owned.v.begin(), owned.v.end(), -2.5f);
  AttentionResult const result = recipe_attention(owned.problem(), constant);
  for (std::size_t i = 0; i < result.o.size(); ++i) ASSERT_NEAR(result.o[i], static_cast<double>(owned.v[i % 64]), 2e-6 * 20) << i;
}

TEST_P(EveryRecipe, RowsWithoutKeysAreZero) {
  OwnedProblem const none = OwnedProblem::normal({1, 3, 0, 1, 1, 64});
  OwnedProblem const causal = OwnedProblem::normal({1, 9, 5, 1, 1, 64});
  AttentionResult const empty = recipe_attention(none.problem(), options());
  for (double const x : empty.o) EXPECT_EQ(x, 0.0);
  for (double const x : empty.lse) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
  Problem problem = causal.problem();
  problem.causal = true;
  AttentionResult const result = recipe_attention(problem, options());
  for (std::size_t i = 0; i < 9; ++i) {
    bool const sees_keys = i >= 4;
    EXPECT_EQ(std::isfinite(result.lse[i]), sees_keys);
    EXPECT_EQ(result.o[i * 64] != 0.0, sees_keys);
  }
}

/// Shifting all keys by one vector shifts all scores of a row: O stays, lse moves by tau q . shift, exactly where K means are subtracted.
TEST_P(EveryRecipe, KeyShiftMovesOnlyTheLse) {
  Options const shift_proof = options();
  OwnedProblem owned = OwnedProblem::normal({1, 7, 150, 1, 1, 64}, 13);
  AttentionResult const before = recipe_attention(owned.problem(), shift_proof);
  std::vector<double> shifts;
  for (std::int64_t i = 0; i < 7; ++i) {
    double product = 0;
    for (std::int64_t d = 0; d < 64; ++d) product += static_cast<double>(owned.q_row(0, i)[d]) * 2.0 * static_cast<double>(d % 3);
    shifts.push_back(product / 8);
  }
  for (std::int64_t j = 0; j < 150; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) owned.k_row(0, j)[d] += 2.0f * static_cast<float>(d % 3);
  }
  AttentionResult const after = recipe_attention(owned.problem(), shift_proof);
  double const tolerance = shift_proof.k_mean || shift_proof.qk == QkFormat::f32 ? 2e-3 : 0.5;
  EXPECT_LE(relative_l2(after.o, before.o), tolerance);
  for (std::size_t i = 0; i < 7; ++i) {
    if (shift_proof.k_mean || shift_proof.qk == QkFormat::f32) {
      EXPECT_NEAR(after.lse[i] - before.lse[i], shifts[i], 2e-3);
    }
  }
}

/// Keys with a mean of size 50, in two shards that subtract different means: only corrected lse values can weigh them against each other.
TEST_P(EveryRecipe, ShardsWithDifferentKMeansMerge) {
  OwnedProblem owned = OwnedProblem::normal({1, 16, 160, 1, 1, 64}, 31);
  Options options = this->options();
  bool const takes_large_means = options.k_mean || options.qk == QkFormat::f32;
  float const mean = takes_large_means ? 50.0f : 0.0f;
  for (std::int64_t j = 0; j < 160; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) owned.k_row(0, j)[d] += mean + (j < 70 ? 0.1f : -0.1f) * static_cast<float>(d % 5);
  }
  AttentionResult const exact = exact_attention(owned.problem());
  auto const shard = [&](std::int64_t first, std::int64_t count) {
    Problem problem = owned.problem();
    for (TensorView* tensor : {&problem.k, &problem.v}) {
      tensor->data = static_cast<float const*>(tensor->data) + first * tensor->stride[1];
      tensor->shape[1] = count;
    }
    return recipe_attention(problem, options);
  };
  AttentionResult const a = shard(0, 70);
  AttentionResult const b = shard(70, 90);
  std::vector<double> merged(exact.o.size());
  for (std::size_t i = 0; i < 16; ++i) {
    double const lse = std::max(a.lse[i], b.lse[i]) + std::log1p(std::exp(-std::abs(a.lse[i] - b.lse[i])));
    EXPECT_NEAR(lse, exact.lse[i], lse_tolerance_of(options) + 1e-4) << "row " << i;
    for (std::size_t d = 0; d < 64; ++d) {
      merged[i * 64 + d] = std::exp(a.lse[i] - lse) * a.o[i * 64 + d] + std::exp(b.lse[i] - lse) * b.o[i * 64 + d];
    }
  }
  EXPECT_LE(relative_l2(merged, exact.o), tolerance_of(options) + 5e-3);
}

TEST(RecipeOptions, UnquantisedPreparationChangesNothing) {
  OwnedProblem owned = OwnedProblem::normal({2, 33, 140, 4, 2, 72}, 14);
  Sizes const sizes = owned.sizes();
  std::vector<std::int32_t> const permutation = random_permutation(sizes, 140, 15);
  Problem problem = owned.problem();
  AttentionResult const exact = exact_attention(problem);
  problem.permutation = permutation;
  Options options = recipe_options(Recipe::exact);
  options.hadamard = options.k_mean = true;
  AttentionResult const result = recipe_attention(problem, options);
  EXPECT_LE(max_abs_difference(result.o, exact.o), 1e-5);
  EXPECT_LE(max_abs_difference(result.lse, exact.lse), 1e-5);
}

/// Per-head descales and no block means: which keys are neighbours has no influence at all.
TEST(RecipeOptions, HeadScalingIsBlindToTheKeyOrder) {
  OwnedProblem const owned = OwnedProblem::normal({1, 20, 300, 2, 1, 64}, 16);
  Sizes const sizes = owned.sizes();
  std::vector<std::int32_t> const permutation = random_permutation(sizes, 300, 17);
  Problem permuted = owned.problem();
  permuted.permutation = permutation;
  for (Recipe const recipe : {Recipe::fp8, Recipe::bf16}) {
    AttentionResult const a = recipe_attention(owned.problem(), recipe_options(recipe));
    AttentionResult const b = recipe_attention(permuted, recipe_options(recipe));
    EXPECT_LE(max_abs_difference(a.o, b.o), 1e-12);
    EXPECT_LE(max_abs_difference(a.lse, b.lse), 1e-12);
  }
}

/// Keys of two kinds, interleaved: only sorted together do the block means take the kinds out of the residual.
TEST(RecipeOptions, AGoodPermutationHelpsVSmooth) {
  OwnedProblem owned = OwnedProblem::normal({1, 40, 512, 1, 1, 64}, 18);
  std::vector<std::int32_t> permutation;
  for (std::int32_t kind = 0; kind < 2; ++kind) {
    for (std::int32_t j = kind; j < 512; j += 2) permutation.push_back(j);
  }
  for (std::int64_t j = 0; j < 512; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) owned.v_row(0, j)[d] = 0.05f * owned.v_row(0, j)[d] + (j % 2 == 0 ? 8.0f : -8.0f);
  }
  Options options = recipe_options(Recipe::vsmooth8s);
  AttentionResult const exact = exact_attention(owned.problem());
  options.qk = QkFormat::f32;
  options.prob = ProbFormat::f32;  // only V is quantised
  double const interleaved = relative_l2(recipe_attention(owned.problem(), options).o, exact.o);
  Problem sorted = owned.problem();
  sorted.permutation = permutation;
  double const grouped = relative_l2(recipe_attention(sorted, options).o, exact.o);
  EXPECT_LT(grouped, interleaved / 8);
}

/// The flushed tail and the mean bias of the forms: lse must come back to the exact one.
TEST(RecipeOptions, LseOfEveryExpCastFormIsUnbiased) {
  OwnedProblem const owned = OwnedProblem::normal({1, 100, 500, 1, 1, 64}, 19);
  AttentionResult const exact = exact_attention(owned.problem());
  for (ExpForm const form : {ExpForm::exp, ExpForm::paper, ExpForm::offset126, ExpForm::two_line, ExpForm::affine}) {
    Options options = recipe_options(Recipe::vsmooth8s);
    options.qk = QkFormat::f32;
    options.exp_form = form;
    options.top_code = form == ExpForm::paper ? 120 : 126;
    AttentionResult const result = recipe_attention(owned.problem(), options);
    double bias = 0;
    for (std::size_t i = 0; i < exact.lse.size(); ++i) bias += (result.lse[i] - exact.lse[i]) / 100;
    EXPECT_NEAR(bias, 0.0, 0.005) << static_cast<int>(form);
    EXPECT_LE(max_abs_difference(result.lse, exact.lse), 0.02) << static_cast<int>(form);
  }
}

TEST(RecipeOptions, ZeroSoftmaxScaleGivesTheMean) {
  OwnedProblem const owned = OwnedProblem::normal({1, 3, 77, 1, 1, 64}, 20);
  Problem problem = owned.problem();
  problem.softmax_scale = 0.0;
  AttentionResult const exact = exact_attention(problem);
  for (Recipe const recipe : all_recipes()) {
    AttentionResult const result = recipe_attention(problem, recipe_options(recipe));
    // Equal probabilities: only V is rounded, and its errors average out.
    EXPECT_LE(relative_l2(result.o, exact.o), 0.15) << recipe_name(recipe);
    EXPECT_NEAR(result.lse[0], std::log(77.0), 0.041) << recipe_name(recipe);
  }
}

}  // namespace
}  // namespace vcattn
