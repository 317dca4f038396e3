// Error against exact attention: the tolerances of the contract on N(0, 1) inputs, and the order of the recipes on the shipped capture.

#include <gtest/gtest.h>

#include <cmath>

#include "attention/run.hpp"
#include "reference/attention.hpp"

namespace vcattn {
namespace {

using testing_support::OwnedProblem;
using testing_support::relative_l2;
using testing_support::run;

/// Tolerance of a recipe on N(0, 1) inputs, head_dim 64 to 128.
double tolerance(Recipe recipe) {
  switch (recipe) {
    case Recipe::exact:
      return 1e-5;
    case Recipe::bf16:
      return 2e-3;
    case Recipe::fp8:
    case Recipe::vsmooth8:
    case Recipe::vc8_paper:
    case Recipe::vc8:
      return 0.063;
    case Recipe::sage2:
    case Recipe::vsmooth8s:
    case Recipe::vc8s:
      return 0.045;
    case Recipe::nvfp4:
    case Recipe::sage3:
    case Recipe::vsmooth4:
      return 0.25;
  }
  return 0.0;
}

class AccuracyOfRecipe : public testing::TestWithParam<Recipe> {};

TEST_P(AccuracyOfRecipe, StaysInsideItsToleranceOnNormalInputs) {
  for (std::int64_t const head_dim : {64, 128}) {
    for (std::int64_t const seqlen_kv : {100, 700, 1500}) {
      OwnedProblem owned = OwnedProblem::normal({1, 64, seqlen_kv, 2, 2, head_dim}, static_cast<unsigned>(51 + seqlen_kv));
      owned.round_to_bf16();
      auto const expected = reference::exact_attention(owned.problem());
      auto const out = run(owned.problem(), recipe_options(GetParam()));
      EXPECT_LE(relative_l2(out.o, expected.o), tolerance(GetParam())) << head_dim << " " << seqlen_kv;
      bool const four_bit = recipe_options(GetParam()).qk == QkFormat::nvfp4;
      double error = 0;
      for (std::size_t i = 0; i < expected.lse.size(); ++i) error += out.lse[i] - expected.lse[i];
      EXPECT_LE(std::abs(error / static_cast<double>(expected.lse.size())), four_bit ? 0.06 : 0.02)
          << head_dim << " " << seqlen_kv;  // mean bias, nats
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, AccuracyOfRecipe, testing::ValuesIn(all_recipes().begin(), all_recipes().end()),
                         testing_support::recipe_case_name);

}  // namespace
}  // namespace vcattn
