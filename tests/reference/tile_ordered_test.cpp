// The tile-ordered reference, fed by the reference's own slab, against the textbook of the same recipe.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "problems.hpp"
#include "reference/attention.hpp"
#include "reference/slab.hpp"
#include "reference/tile_ordered.hpp"

namespace vcattn {
namespace {

using namespace testing_support;
using reference::AttentionResult;
using reference::exact_attention;
using reference::recipe_attention;

AttentionResult tile_ordered(Problem const& problem, Options const& options, reference::StartsPart const& starts_part = {}) {
  reference::PackedSlab const slab = reference::pack_slab(problem, options);
  return reference::tile_ordered_attention(slab.layout, options, slab.bytes.data(), !problem.cu_seqlens_q.empty(),
                                           reference::ScoreArithmetic::exact, starts_part);
}

class TileOrdered : public testing::TestWithParam<Recipe> {
 protected:
  Options options() const { return recipe_options(GetParam()); }

  /// A running maximum rounds early tiles against another constant than the final one does: equal only to the rounding of P.
  double multi_tile_tolerance() const {
    if (options().prob == ProbFormat::f32) return 1e-5;
    if (options().prob == ProbFormat::bf16) return 4e-3;
    return options().prob == ProbFormat::e4m3 ? 0.03 : 0.08;
  }
  double multi_tile_lse_tolerance() const {
    return options().prob == ProbFormat::nvfp4 || options().prob == ProbFormat::nvfp4_two_level ? 0.06 : 0.03;
  }
};
std::string recipe_test_name(testing::TestParamInfo<Recipe> const& param) {
  std::string name(recipe_name(param.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, TileOrdered, testing::ValuesIn(all_recipes().begin(), all_recipes().end()), recipe_test_name);

/// One tile: the running maximum is the global one, and only FP32 rounding next to a midpoint between two codes may differ.
TEST_P(TileOrdered, EqualsTheTextbookOnOneTile) {
  for (std::int64_t const seqlen_kv : {1, 2, 31, 127, 128}) {
    OwnedProblem const owned = OwnedProblem::normal({1, 37, seqlen_kv, 2, 1, 64}, 21);
    AttentionResult const textbook = recipe_attention(owned.problem(), options());
    AttentionResult const tiles = tile_ordered(owned.problem(), options());
    EXPECT_LE(relative_l2(tiles.o, textbook.o), 2e-3) << seqlen_kv;
    EXPECT_LE(max_abs_difference(tiles.lse, textbook.lse), 0.01) << seqlen_kv;
  }
}

TEST_P(TileOrdered, AgreesWithTheTextbookOnOddSizes) {
  for (auto const [seqlen_q, seqlen_kv, head_dim] :
       std::vector<std::array<std::int64_t, 3>>{{1, 129, 64}, {129, 257, 48}, {67, 511, 128}}) {
    OwnedProblem const owned = OwnedProblem::normal({2, seqlen_q, seqlen_kv, 2, 1, head_dim}, 22);
    Sizes const sizes = owned.sizes();
    std::vector<std::int32_t> const permutation = random_permutation(sizes, seqlen_kv, 23);
    Problem problem = owned.problem();
    problem.permutation = permutation;
    AttentionResult const textbook = recipe_attention(problem, options());
    AttentionResult const tiles = tile_ordered(problem, options());
    EXPECT_LE(relative_l2(tiles.o, textbook.o), multi_tile_tolerance()) << seqlen_kv;
    EXPECT_LE(max_abs_difference(tiles.lse, textbook.lse), multi_tile_lse_tolerance()) << seqlen_kv;
  }
}

/// A part begins without the maximum of the keys before it: more tiles are rounded against another constant than the textbook's.
TEST_P(TileOrdered, AddsUpPartsOfTheKeys) {
  OwnedProblem const owned = OwnedProblem::normal({1, 67, 700, 2, 1, 64}, 29);
  AttentionResult const textbook = recipe_attention(owned.problem(), options());
  auto const starts_part = [](std::int64_t, std::int64_t head, std::int64_t row, std::int64_t key_tile) {
    return head == 0 ? key_tile == 1 : key_tile == 2 + row % 2 || key_tile == 5;
  };
  AttentionResult const parts = tile_ordered(owned.problem(), options(), starts_part);
  EXPECT_LE(relative_l2(parts.o, textbook.o), 1.5 * multi_tile_tolerance());
  EXPECT_LE(max_abs_difference(parts.lse, textbook.lse), multi_tile_lse_tolerance());
  if (options().prob == ProbFormat::e4m3) {
    EXPECT_NE(parts.o, tile_ordered(owned.problem(), options()).o);
  }
}

TEST_P(TileOrdered, CausalAndKeyLengths) {
  OwnedProblem owned = OwnedProblem::normal({2, 150, 200, 2, 2, 64}, 24);
  std::vector<std::int32_t> const seqused = {140, 200};
  for (std::int64_t j = 140; j < 200; ++j) std::fill_n(owned.v_row(0, j), 128, std::numeric_limits<float>::quiet_NaN());
  Problem problem = owned.problem();
  problem.seqused_k = seqused;
  problem.causal = true;
  AttentionResult const textbook = recipe_attention(problem, options());
  AttentionResult const tiles = tile_ordered(problem, options());
  EXPECT_LE(relative_l2(tiles.o, textbook.o), multi_tile_tolerance());
  for (std::size_t i = 0; i < tiles.lse.size(); ++i) {
    if (std::isinf(textbook.lse[i])) {
      EXPECT_EQ(tiles.lse[i], textbook.lse[i]);
    } else {
      EXPECT_NEAR(tiles.lse[i], textbook.lse[i], multi_tile_lse_tolerance());
    }
  }
}

TEST_P(TileOrdered, Varlen) {
  std::vector<std::int32_t> const cu_q = {0, 130, 130, 141};
  std::vector<std::int32_t> const cu_k = {0, 7, 20, 290};
  OwnedProblem const owned = OwnedProblem::normal({1, 141, 290, 2, 1, 64}, 25);
  Problem problem = owned.problem();
  problem.cu_seqlens_q = cu_q;
  problem.cu_seqlens_k = cu_k;
  AttentionResult const textbook = recipe_attention(problem, options());
  AttentionResult const tiles = tile_ordered(problem, options());
  EXPECT_LE(relative_l2(tiles.o, textbook.o), multi_tile_tolerance());
  EXPECT_LE(max_abs_difference(tiles.lse, textbook.lse), multi_tile_lse_tolerance());
}

/// Every tile raises the row maximum: T moves at each of them and everything summed before is rescaled.
TEST_P(TileOrdered, SurvivesARisingMaximum) {
  OwnedProblem owned = OwnedProblem::normal({1, 20, 640, 1, 1, 64}, 26);
  for (std::int64_t i = 0; i < 20; ++i) owned.q_row(0, i)[0] = 4.0f;
  for (std::int64_t j = 0; j < 640; ++j) owned.k_row(0, j)[0] = static_cast<float>(j) * 0.02f - 6.0f;
  AttentionResult const textbook = recipe_attention(owned.problem(), options());
  AttentionResult const tiles = tile_ordered(owned.problem(), options());
  EXPECT_LE(relative_l2(tiles.o, textbook.o), multi_tile_tolerance());
  EXPECT_LE(max_abs_difference(tiles.lse, textbook.lse), multi_tile_lse_tolerance());
}

TEST_P(TileOrdered, ConstantValuesComeOutConstant) {
  OwnedProblem owned = OwnedProblem::normal({1, 13, 400, 1, 1, 64}, 27);
  for (std::int64_t i = 0; i < 13; ++i) owned.q_row(0, i)[0] = 4.0f;
  for (std::int64_t j = 0; j < 400; ++j) owned.k_row(0, j)[0] = static_cast<float>(j) * 0.02f;
  std::fill(owned.v.begin(), owned.v.end(), 3.25f);
  for (double const x : tile_ordered(owned.problem(), options()).o) ASSERT_NEAR(x, 3.25, 1e-6);
}

TEST_P(TileOrdered, NonFiniteRowsStayAlone) {
  OwnedProblem owned = OwnedProblem::normal({1, 140, 150, 2, 2, 64}, 28);
  AttentionResult const clean = tile_ordered(owned.problem(), options());
  owned.q_row(0, 133, 1)[9] = std::numeric_limits<float>::infinity();
  AttentionResult const query = tile_ordered(owned.problem(), options());
  for (std::size_t i = 0; i < clean.o.size(); ++i) {
    ASSERT_EQ(std::isnan(query.o[i]), i / 64 == 133 * 2 + 1) << i;
    if (i / 64 % 2 == 0) {
      ASSERT_EQ(query.o[i], clean.o[i]);
    }
  }
  owned.v_row(0, 149, 0)[63] = std::numeric_limits<float>::quiet_NaN();
  AttentionResult const value = tile_ordered(owned.problem(), options());
  for (std::size_t i = 0; i < clean.o.size(); ++i) ASSERT_EQ(std::isnan(value.o[i]), i / 64 % 2 == 0 || i / 64 == 133 * 2 + 1) << i;
}

/// A top code below 126 lets T stay while the maximum creeps up: fewer rescales, the same result to the rounding of P.
TEST(TileOrderedHeadRoom, AStaleMaximumStaysInsideTheCodes) {
  OwnedProblem owned = OwnedProblem::normal({1, 20, 512, 1, 1, 64}, 29);
  for (std::int64_t i = 0; i < 20; ++i) owned.q_row(0, i)[0] = 2.0f;
  for (std::int64_t j = 0; j < 512; ++j) owned.k_row(0, j)[0] = static_cast<float>(j / 128) * 1.0f;
  AttentionResult const exact = exact_attention(owned.problem());
  for (ExpForm const form : {ExpForm::offset126, ExpForm::two_line}) {
    Options options = recipe_options(Recipe::vc8s);
    options.exp_form = form;
    options.top_code = 126;
    double const tight = relative_l2(tile_ordered(owned.problem(), options).o, exact.o);
    options.top_code = 110;
    double const roomy = relative_l2(tile_ordered(owned.problem(), options).o, exact.o);
    EXPECT_NE(tight, roomy);
    EXPECT_LE(tight, 0.06);
    EXPECT_LE(roomy, 0.06);
  }
}

/// Rounding the scores to FP16 is what the FP16 variant does, and only it.
TEST(TileOrderedScores, Fp16VariantRoundsTheScores) {
  OwnedProblem const owned = OwnedProblem::normal({1, 64, 256, 1, 1, 128}, 30);
  Options options = recipe_options(Recipe::vsmooth8);
  options.scores = ScoreFormat::f16;
  AttentionResult const half = tile_ordered(owned.problem(), options);
  options.scores = ScoreFormat::f32;
  AttentionResult const full = tile_ordered(owned.problem(), options);
  EXPECT_NE(half.o, full.o);
  EXPECT_LE(relative_l2(half.o, full.o), 0.02);
  options.scores = ScoreFormat::automatic;
  EXPECT_EQ(tile_ordered(owned.problem(), options).o, half.o) << "N(0,1) inputs stay below the score bound";
}

/// The short sums of sm_90 move some codes, and nothing else; INT8 products are exact there too.
TEST(TileOrderedScores, Sm90ArithmeticIsForE4m3Only) {
  OwnedProblem const owned = OwnedProblem::normal({1, 64, 256, 1, 1, 128}, 31);
  for (Recipe const recipe : {Recipe::vc8, Recipe::vc8_paper, Recipe::vc8s}) {
    Options const options = recipe_options(recipe);
    reference::PackedSlab const slab = reference::pack_slab(owned.problem(), options);
    auto const run = [&](reference::ScoreArithmetic arithmetic) {
      return reference::tile_ordered_attention(slab.layout, options, slab.bytes.data(), false, arithmetic);
    };
    AttentionResult const exact = run(reference::ScoreArithmetic::exact);
    AttentionResult const sm90 = run(reference::ScoreArithmetic::sm90);
    EXPECT_EQ(exact.o != sm90.o, recipe != Recipe::vc8s) << recipe_name(recipe);
    EXPECT_LE(relative_l2(sm90.o, exact.o), 0.02) << recipe_name(recipe);
  }
}

}  // namespace
}  // namespace vcattn
