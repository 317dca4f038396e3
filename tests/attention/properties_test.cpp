// Properties that hold whatever the numbers are.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "attention/run.hpp"
#include "core/half.hpp"
#include "reference/attention.hpp"

namespace vcattn {
namespace {

using testing_support::OwnedProblem;
using testing_support::relative_l2;
using testing_support::run;
using testing_support::Sizes;

class PropertyOfRecipe : public testing::TestWithParam<Recipe> {
 protected:
  Options options_ = recipe_options(GetParam());
};

TEST_P(PropertyOfRecipe, ConstantValuesGiveConstantOutput) {
  OwnedProblem owned = OwnedProblem::normal({1, 100, 700, 2, 1, 64}, 31);
  for (std::int64_t j = 0; j < 700; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) owned.v_row(0, j)[d] = 0.1f * static_cast<float>(d % 7) - 0.25f;
  }
  auto const out = run(owned.problem(), options_);
  // Constant along the keys: exact up to the rounding of V's own format.
  double const step = options_.v_mean               ? 1e-5
                      : options_.v == VFormat::f32  ? 1e-5
                      : options_.v == VFormat::bf16 ? 0x1p-8
                      : options_.v == VFormat::e4m3 ? 0x1p-4
                                                    : 0.2;
  for (std::size_t i = 0; i < out.o.size(); ++i) {
    double const expected = static_cast<double>(owned.v_row(0, 0)[i % 64]);
    EXPECT_NEAR(out.o[i], expected, step * 0.36) << i;
    EXPECT_NEAR(out.o[i], out.o[i % 64], 2e-6) << i;  // every row the same
  }
}

TEST_P(PropertyOfRecipe, PermutingKeysAndValuesChangesOnlyRounding) {
  Sizes const sizes{1, 50, 384, 1, 1, 64};
  OwnedProblem const owned = OwnedProblem::normal(sizes, 32);
  options_.order = GroupOrder::sequence;
  auto const exact = reference::exact_attention(owned.problem());
  Problem problem = owned.problem();
  auto const straight = run(problem, options_);
  auto const permutation = testing_support::random_permutation(sizes, 384, 33);
  problem.permutation = permutation;
  auto const permuted = run(problem, options_);
  double const error = relative_l2(straight.o, exact.o);
  EXPECT_LE(relative_l2(permuted.o, exact.o), 1.15 * error + 1e-6);
  for (std::size_t i = 0; i < exact.lse.size(); ++i) EXPECT_NEAR(permuted.lse[i], straight.lse[i], 0.3);
}

/// Recipes that take the K mean out.
class KMeanRecipe : public PropertyOfRecipe {};

TEST_P(KMeanRecipe, AddingAVectorToEveryKeyOnlyShiftsLse) {
  Sizes const sizes{1, 64, 500, 2, 1, 64};
  OwnedProblem plain = OwnedProblem::normal(sizes, 34);
  plain.round_to_bf16();
  OwnedProblem shifted = plain;
  std::vector<double> shift(64);
  for (std::size_t d = 0; d < 64; ++d) shift[d] = 50.0 * std::cos(static_cast<double>(d));
  for (std::int64_t j = 0; j < 500; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) shifted.k_row(0, j)[d] += static_cast<float>(shift[static_cast<std::size_t>(d)]);
  }
  auto const a = run(plain.problem(), options_);
  auto const b = run(shifted.problem(), options_);
  EXPECT_LE(relative_l2(b.o, a.o), 0.02);  // codes near a midpoint may flip
  for (std::size_t i = 0; i < 64; ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      double dot = 0;
      for (std::size_t d = 0; d < 64; ++d)
        dot += static_cast<double>(plain.q_row(0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(h))[d]) * shift[d];
      EXPECT_NEAR(b.lse[h * 64 + i], a.lse[h * 64 + i] + dot / 8.0, 0.05 + 1e-4 * std::abs(dot));
    }
  }
}

TEST_P(PropertyOfRecipe, ShardsMergedByLseGiveTheWhole) {
  Sizes const sizes{1, 40, 600, 1, 1, 64};
  OwnedProblem owned = OwnedProblem::normal(sizes, 35);
  for (std::int64_t j = 0; j < 600; ++j) owned.k_row(0, j)[9] += 50.0f;  // a K mean of size 50
  Problem whole = owned.problem();
  auto const expected = reference::exact_attention(whole);
  auto const once = run(whole, options_);
  Problem first = whole;
  Problem second = whole;
  first.k.shape[1] = first.v.shape[1] = 250;
  second.k.shape[1] = second.v.shape[1] = 350;
  second.k.data = owned.k_row(0, 250);
  second.v.data = owned.v_row(0, 250);
  auto const a = run(first, options_);
  auto const b = run(second, options_);
  std::vector<double> merged(a.o.size());
  for (std::size_t i = 0; i < a.lse.size(); ++i) {
    double const weight = 1.0 / (1.0 + std::exp(b.lse[i] - a.lse[i]));
    for (std::size_t d = 0; d < 64; ++d) merged[i * 64 + d] = weight * a.o[i * 64 + d] + (1 - weight) * b.o[i * 64 + d];
  }
  EXPECT_LE(relative_l2(merged, expected.o), 1.5 * relative_l2(once.o, expected.o) + 0.01);
}

TEST_P(PropertyOfRecipe, RisingMaximumNeverSaturates) {
  // Every key scores higher than all before it, over many octaves, and the last ones share the mass.
  OwnedProblem owned({1, 4, 640, 1, 1, 64});
  std::mt19937 random(36);
  std::normal_distribution<float> normal;
  for (float& x : owned.v) x = normal(random);
  for (std::int64_t i = 0; i < 4; ++i) owned.q_row(0, i)[0] = 8.0f;
  for (std::int64_t j = 0; j < 640; ++j) {
    owned.k_row(0, j)[0] = 0.02f * static_cast<float>(j);
    owned.k_row(0, j)[1] = normal(random);
  }
  options_.order = GroupOrder::sequence;
  // The same recipe with one global maximum: the running one may only cost rounding.
  auto const expected = reference::recipe_attention(owned.problem(), options_);
  auto const out = run(owned.problem(), options_);
  EXPECT_LE(relative_l2(out.o, expected.o), 0.03);
}

TEST_P(PropertyOfRecipe, ThreadCountDoesNotChangeABit) {
  OwnedProblem const owned = OwnedProblem::normal({2, 300, 517, 4, 2, 64}, 37);
  options_.num_threads = 1;
  auto const one = run(owned.problem(), options_);
  for (std::int32_t const threads : {2, 5}) {
    options_.num_threads = threads;
    auto const many = run(owned.problem(), options_);
    EXPECT_EQ(many.o, one.o);
    EXPECT_EQ(many.lse, one.lse);
  }
}

TEST_P(PropertyOfRecipe, NoKeysGiveZeroAndMinusInfinity) {
  OwnedProblem const owned = OwnedProblem::normal({1, 9, 0, 2, 1, 64}, 38);
  auto const out = run(owned.problem(), options_);
  for (double const x : out.o) EXPECT_EQ(x, 0.0);
  for (double const x : out.lse) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
}

TEST_P(PropertyOfRecipe, NoQueriesAreServedWhateverTheStrides) {
  OwnedProblem const owned = OwnedProblem::normal({2, 0, 9, 2, 1, 64}, 38);  // batch stride 0, since there is nothing to stride over
  EXPECT_TRUE(run(owned.problem(), options_).o.empty());
}

TEST_P(PropertyOfRecipe, EqualScoresAverageTheValues) {
  OwnedProblem owned = OwnedProblem::normal({1, 3, 1000, 1, 1, 64}, 39);
  std::fill(owned.q.begin(), owned.q.end(), 0.0f);
  auto const expected = reference::exact_attention(owned.problem());
  auto const out = run(owned.problem(), options_);
  // The mean of 1,000 values is small against one value: errors of V relative to V itself.
  double const tolerance = options_.v == VFormat::nvfp4 ? 0.3 : options_.v == VFormat::e4m3 ? 0.08 : 0.02;
  for (std::size_t i = 0; i < out.o.size(); ++i) EXPECT_NEAR(out.o[i], expected.o[i], tolerance * 0.1) << i;
  for (double const lse : out.lse) EXPECT_NEAR(lse, std::log(1000.0), 0.05);
}

TEST_P(PropertyOfRecipe, OneDominantKeyReturnsItsValue) {
  OwnedProblem owned = OwnedProblem::normal({1, 5, 300, 1, 1, 64}, 40);
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t d = 0; d < 64; ++d) owned.q_row(0, i)[d] = owned.k_row(0, 123)[d] = d % 2 == 0 ? 2.5f : -2.5f;
  }
  auto const out = run(owned.problem(), options_);
  double const tolerance = options_.v == VFormat::nvfp4 ? 0.6 : options_.v == VFormat::e4m3 ? 0.15 : 0.02;
  for (std::size_t i = 0; i < out.o.size(); ++i) EXPECT_NEAR(out.o[i], static_cast<double>(owned.v_row(0, 123)[i % 64]), tolerance) << i;
}

TEST_P(PropertyOfRecipe, InputsAreLeftAlone) {
  OwnedProblem owned = OwnedProblem::normal({1, 30, 140, 2, 1, 64}, 41);
  OwnedProblem const copy = owned;
  run(owned.problem(), options_);
  EXPECT_EQ(owned.q, copy.q);
  EXPECT_EQ(owned.k, copy.k);
  EXPECT_EQ(owned.v, copy.v);
}

TEST_P(PropertyOfRecipe, OutputDtypesAndStrides) {
  OwnedProblem const owned = OwnedProblem::normal({2, 33, 150, 2, 1, 64}, 42);
  auto const expected = run(owned.problem(), options_);
  // HND bf16 and fp16 with a gap of three elements behind every row.
  for (DType const dtype : {DType::bf16, DType::f16}) {
    std::int64_t const row = 64 + 3;
    std::vector<std::uint16_t> buffer(static_cast<std::size_t>(2 * 2 * 33 * row), 0xABCD);
    MutableTensorView const o{buffer.data(), dtype, {2, 33, 2, 64}, {2 * 33 * row, row, 33 * row, 1}};
    attend(owned.problem(), options_, o);
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = 0; i < 33; ++i) {
          for (std::int64_t d = 0; d < row; ++d) {
            std::uint16_t const got = buffer[static_cast<std::size_t>(((b * 2 + h) * 33 + i) * row + d)];
            if (d >= 64) {
              ASSERT_EQ(got, 0xABCD);
              continue;
            }
            float const value = static_cast<float>(expected.o[static_cast<std::size_t>(((b * 33 + i) * 2 + h) * 64 + d)]);
            ASSERT_EQ(got, dtype == DType::bf16 ? core::bf16_encode(value) : core::fp16_encode(value));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, PropertyOfRecipe, testing::ValuesIn(all_recipes().begin(), all_recipes().end()),
                         testing_support::recipe_case_name);

std::vector<Recipe> recipes_with_k_mean() {
  std::vector<Recipe> result;
  for (Recipe const recipe : all_recipes()) {
    if (recipe_options(recipe).k_mean) result.push_back(recipe);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Recipes, KMeanRecipe, testing::ValuesIn(recipes_with_k_mean()), testing_support::recipe_case_name);

TEST(Rope, IsAppliedToQAndKBeforeEverything) {
  OwnedProblem const owned = OwnedProblem::normal({1, 90, 130, 2, 1, 64}, 43);
  std::vector<float> cosine(130 * 24);
  std::vector<float> sine(cosine.size());
  for (std::size_t i = 0; i < cosine.size(); ++i) {
    cosine[i] = static_cast<float>(std::cos(0.01 * static_cast<double>(i)));
    sine[i] = static_cast<float>(std::sin(0.01 * static_cast<double>(i)));
  }
  for (RopeStyle const style : {RopeStyle::interleaved, RopeStyle::rotate_half}) {
    Problem problem = owned.problem();
    problem.rope = Rope{cosine.data(), sine.data(), 130, 48, 8, style};
    auto const expected = reference::exact_attention(problem);
    EXPECT_LE(relative_l2(run(problem, recipe_options(Recipe::exact)).o, expected.o), 1e-5);
    EXPECT_LE(relative_l2(run(problem, recipe_options(Recipe::vc8s)).o, expected.o), 0.045);
    EXPECT_GT(relative_l2(run(owned.problem(), recipe_options(Recipe::exact)).o, expected.o), 0.1);
  }
}

}  // namespace
}  // namespace vcattn
