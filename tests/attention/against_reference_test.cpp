// The CPU back end against the tile-ordered reference on the same prepared bytes, for every recipe, form and instruction set, on odd sizes.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/cpu/attention.hpp"
#include "attention/run.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/tile_ordered.hpp"

namespace vcattn {
namespace {

using testing_support::OwnedProblem;
using testing_support::Sizes;

constexpr double kTolerance = 5e-3;  // the contract of docs/equations.md for a kernel against the reference of its recipe

/// ISA by ISA, since the public call only takes the best one.
void expect_agrees(Problem const& problem, Options const& options, std::string const& what) {
  SCOPED_TRACE(what);
  Prepared const prepared = prepare(problem, options);
  auto const& impl = prepared.impl();
  bool const varlen = !problem.cu_seqlens_q.empty();
  auto const expected = reference::tile_ordered_attention(impl.layout, options, impl.slab, varlen);
  std::vector<std::byte> workspace(workspace_size_bytes(problem, options) + 256);
  auto const offset = (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
  for (auto const isa : device::cpu::available_isas()) {
    SCOPED_TRACE(device::cpu::isa_name(isa));
    std::vector<float> o;
    auto const view = testing_support::output_view(o, problem.q.shape);
    std::vector<float> lse(expected.lse.size(), std::numeric_limits<float>::quiet_NaN());
    attention_cpu::attention(impl.view(), options, varlen, view, lse, workspace.data() + offset, isa);
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < o.size(); ++i) {
      ASSERT_EQ(std::isnan(o[i]), std::isnan(expected.o[i])) << i;
      if (std::isnan(o[i])) continue;
      error += std::pow(static_cast<double>(o[i]) - expected.o[i], 2);
      norm += expected.o[i] * expected.o[i];
    }
    EXPECT_LE(std::sqrt(error), kTolerance * std::sqrt(norm) + 1e-12);
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (std::isnan(expected.lse[i])) {
        EXPECT_TRUE(std::isnan(lse[i]));
      } else if (std::isinf(expected.lse[i])) {
        EXPECT_EQ(static_cast<double>(lse[i]), expected.lse[i]);
      } else {
        // FP32 of a large score, and for NVFP4 probabilities one block scale that rounds the other way.
        bool const four_bit = options.prob == ProbFormat::nvfp4 || options.prob == ProbFormat::nvfp4_two_level;
        EXPECT_NEAR(static_cast<double>(lse[i]), expected.lse[i], (four_bit ? 2e-2 : 2e-3) + 1e-6 * std::abs(expected.lse[i])) << i;
      }
    }
  }
}

class KernelOfRecipe : public testing::TestWithParam<Recipe> {
 protected:
  Options options_ = recipe_options(GetParam());
};

TEST_P(KernelOfRecipe, OddSizes) {
  for (Sizes const& sizes : {Sizes{1, 1, 1, 1, 1, 32},
                             {1, 1, 127, 1, 1, 64},
                             {2, 129, 128, 2, 2, 64},
                             {1, 127, 389, 4, 2, 128},
                             {1, 3, 130, 3, 1, 48},
                             {1, 65, 257, 1, 1, 256},
                             {1, 5, 0, 2, 1, 64},
                             {1, 0, 5, 2, 1, 64}}) {
    expect_agrees(
        OwnedProblem::normal(sizes, 21).problem(), options_,
        "Sq " + std::to_string(sizes.seqlen_q) + " Sk " + std::to_string(sizes.seqlen_kv) + " D " + std::to_string(sizes.head_dim));
  }
}

TEST_P(KernelOfRecipe, Causal) {
  for (auto const& [seqlen_q, seqlen_kv] : {std::pair<std::int64_t, std::int64_t>{200, 200}, {130, 300}, {300, 130}}) {
    OwnedProblem const owned = OwnedProblem::normal({1, seqlen_q, seqlen_kv, 2, 1, 64}, 22);
    Problem problem = owned.problem();
    problem.causal = true;
    expect_agrees(problem, options_, std::to_string(seqlen_q) + " x " + std::to_string(seqlen_kv));
  }
}

TEST_P(KernelOfRecipe, KeyLengthsAndVarlen) {
  OwnedProblem const owned = OwnedProblem::normal({3, 70, 260, 2, 1, 64}, 23);
  std::vector<std::int32_t> const used = {0, 129, 260};
  Problem problem = owned.problem();
  problem.seqused_k = used;
  expect_agrees(problem, options_, "seqused_k");

  OwnedProblem const packed = OwnedProblem::normal({1, 300, 400, 2, 2, 64}, 24);
  std::vector<std::int32_t> const cu_q = {0, 129, 129, 300};
  std::vector<std::int32_t> const cu_k = {0, 10, 140, 400};
  std::vector<std::int32_t> const packed_used = {10, 100, 257};
  Problem varlen = packed.problem();
  varlen.cu_seqlens_q = cu_q;
  varlen.cu_seqlens_k = cu_k;
  expect_agrees(varlen, options_, "varlen");
  varlen.seqused_k = packed_used;
  expect_agrees(varlen, options_, "varlen with key lengths");
}

TEST_P(KernelOfRecipe, LargeScoresAndOutliers) {
  OwnedProblem owned = OwnedProblem::normal({1, 40, 300, 1, 1, 64}, 25);
  for (float& x : owned.q) x *= 12;
  owned.k_row(0, 77)[3] = 1e4f;
  owned.v_row(0, 200)[5] = -1e4f;
  expect_agrees(owned.problem(), options_, "outliers");
}

TEST_P(KernelOfRecipe, NonFiniteRowsStayWhereTheContractPutsThem) {
  OwnedProblem owned = OwnedProblem::normal({1, 20, 150, 2, 2, 64}, 26);
  owned.q_row(0, 7, 0)[1] = std::numeric_limits<float>::quiet_NaN();
  owned.v_row(0, 3, 1)[2] = std::numeric_limits<float>::infinity();
  expect_agrees(owned.problem(), options_, "non-finite");
  auto const out = testing_support::run(owned.problem(), options_);
  for (std::size_t row = 0; row < 20; ++row) {
    for (std::size_t head = 0; head < 2; ++head) {
      EXPECT_EQ(std::isnan(out.o[(row * 2 + head) * 64]), head == 1 || row == 7) << row << " " << head;
      EXPECT_EQ(std::isnan(out.lse[head * 20 + row]), head == 1 || row == 7) << row << " " << head;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, KernelOfRecipe, testing::ValuesIn(all_recipes().begin(), all_recipes().end()),
                         testing_support::recipe_case_name);

TEST(Options, EveryFormAndChoiceAgreesWithTheReference) {
  OwnedProblem const owned = OwnedProblem::normal({1, 131, 390, 2, 1, 96}, 27);
  for (char const* text : {"expcast=paper",
                           "expcast=offset126",
                           "expcast=affine",
                           "expcast=exp",
                           "expcast=two_line,top=112",
                           "expcast=offset126,top=112",
                           "expcast=affine,top=112",
                           "expcast=exp,top=120",
                           "block=32",
                           "block=64",
                           "scores=f32",
                           "scores=f16",
                           "qk=int8",
                           "qk=int8,expcast=two_line,top=112",
                           "qk=bf16",
                           "qk=f32",
                           "qk=nvfp4",
                           "qk=int8,q_mean=on",
                           "v=nvfp4",
                           "v_mean=off",
                           "k_mean=off,hadamard=off",
                           "order=label",
                           "order=chain,clusters=8",
                           "order=sequence",
                           "rounding=shaped",
                           "rounding=nearest",
                           "prob=bf16,expcast=exp",
                           "prob=f32,expcast=exp",
                           "prob=nvfp4,expcast=exp"}) {
    Options options = recipe_options(Recipe::vc8);
    set_options(options, text);
    expect_agrees(owned.problem(), options, text);
  }
}

TEST(Scale, NegativeZeroAndCustomScales) {
  OwnedProblem const owned = OwnedProblem::normal({1, 60, 200, 1, 1, 64}, 28);
  for (double const tau : {-0.125, 0.0, 0.5, 1e-3}) {
    for (Recipe const recipe : {Recipe::exact, Recipe::vc8, Recipe::vc8s, Recipe::vsmooth4}) {
      Problem problem = owned.problem();
      problem.softmax_scale = tau;
      expect_agrees(problem, recipe_options(recipe), std::string(recipe_name(recipe)) + " " + std::to_string(tau));
    }
  }
}

}  // namespace
}  // namespace vcattn
