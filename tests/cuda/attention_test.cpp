// The CUDA attention against the tile-ordered reference and against exact attention: recipes, options, sizes, masks, non-finite values,
// score variants, refusals. Inputs are new at every run; --seed N repeats one. Exits with 2 without a usable GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/attention.hpp"

namespace vcattn::cuda_test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr char const* kRecipes[] = {"vc8", "vc8s", "vsmooth8", "vsmooth8s", "fp8", "vc8-paper"};

/// Error against exact attention on N(0, 1) inputs, as for every back end (tests/attention/accuracy_test.cpp).
double exact_tolerance(Options const& options) { return options.qk == QkFormat::int8 ? 0.045 : 0.063; }

/// Fewer numbers than this do not average the rounding of single codes.
bool large_enough(Sizes const& sizes) { return sizes.batch * sizes.seqlen_q * sizes.num_heads >= 250 && sizes.seqlen_kv >= 100; }

/// A case with what the references make of it.
struct Computed {
  Prepared prepared;
  Expected expected;
  reference::AttentionResult exact;
};

Computed compute(Case const& attention_case, std::uint32_t seed) {
  OwnedProblem const owned = OwnedProblem::normal(attention_case.sizes, seed);
  Problem const problem = attention_case.problem(owned);
  Computed computed;
  computed.prepared = prepare(problem, options_of(attention_case.recipe));
  computed.expected = expected_result(computed.prepared);
  if (large_enough(attention_case.sizes)) computed.exact = reference::exact_attention(problem);
  return computed;
}

void check_on_device(Case const& attention_case, Computed const& computed) {
  std::string const name = attention_case.name();
  Prepared const on_device = to_cuda(computed.prepared);
  Output const output = run(on_device, attention_case.with_lse);
  expect_close(output, computed.expected, name);
  EXPECT_TRUE(same_bits(output, run(on_device, attention_case.with_lse))) << name << ": two runs differ";
  if (computed.exact.o.empty()) return;
  double const error = testing_support::relative_l2(output.o_double(), computed.exact.o);
  EXPECT_LE(error, exact_tolerance(computed.prepared.options())) << name << ": against exact attention";
  Worst::of("o against exact, rel. L2").see(error, name);
}

/// References on all cores, then the device case by case.
void check_cases(std::vector<Case> const& cases) {
  std::vector<Computed> computed(cases.size());
  tbb::parallel_for(std::size_t{0}, cases.size(),
                    [&](std::size_t i) { computed[i] = compute(cases[i], case_seed(static_cast<std::uint32_t>(i))); });
  for (std::size_t i = 0; i < cases.size(); ++i) check_on_device(cases[i], computed[i]);
}

/// Lengths around one and several tiles of 64 and 128 rows, and primes; head_dims and groups of heads in turn.
std::vector<Sizes> odd_sizes() {
  return {
      {1, 1, 1, 1, 1, 64},      {2, 1, 1025, 4, 2, 128},  {1, 2, 63, 4, 1, 40},      {1, 63, 2, 2, 2, 72},     {3, 64, 64, 2, 1, 96},
      {1, 65, 127, 4, 2, 128},  {2, 127, 65, 1, 1, 64},   {1, 128, 128, 4, 1, 128},  {1, 129, 191, 2, 1, 40},  {2, 191, 129, 2, 2, 72},
      {1, 192, 193, 4, 2, 96},  {1, 193, 192, 4, 1, 128}, {1, 255, 257, 2, 1, 64},   {2, 257, 255, 1, 1, 128}, {1, 383, 385, 2, 1, 40},
      {1, 385, 383, 1, 1, 72},  {1, 509, 509, 2, 1, 128}, {1, 1023, 64, 2, 1, 64},   {1, 63, 1023, 2, 2, 96},  {1, 1024, 129, 1, 1, 128},
      {1, 129, 1024, 2, 1, 64}, {1, 1025, 128, 1, 1, 40}, {1, 127, 1025, 2, 1, 128}, {3, 1, 2, 1, 1, 128},     {1, 2, 509, 4, 4, 64}};
}

class RecipeOnDevice : public testing::TestWithParam<char const*> {};

TEST_P(RecipeOnDevice, OddSizes) {
  std::vector<Case> cases;
  for (Sizes const& sizes : odd_sizes()) {
    cases.push_back({GetParam(), sizes});
    cases.back().with_lse = cases.size() % 4 != 0;
  }
  check_cases(cases);
}

/// The mask ends at the last key of the last row: with Sq > Sk the first rows see none.
TEST_P(RecipeOnDevice, Causal) {
  std::vector<Case> cases;
  for (Sizes const& sizes : {Sizes{1, 1, 1, 1, 1, 64},
                             {1, 64, 64, 2, 1, 128},
                             {2, 127, 127, 4, 2, 72},
                             {1, 129, 129, 2, 2, 128},
                             {1, 257, 65, 2, 1, 64},
                             {1, 383, 255, 2, 1, 128},
                             {1, 63, 385, 4, 1, 40},
                             {1, 193, 509, 2, 1, 96},
                             {1, 2, 1025, 4, 2, 128},
                             {1, 1023, 191, 1, 1, 64},
                             {1, 509, 509, 1, 1, 128},
                             {1, 65, 1, 2, 1, 64}}) {
    cases.push_back({GetParam(), sizes, true});
  }
  check_cases(cases);
}

/// Many query tiles of a head, an odd and an even number for either tile size: one key, many.
TEST_P(RecipeOnDevice, ManyQueries) {
  std::vector<Case> cases;
  cases.push_back({GetParam(), {1, 4097, 129, 3, 1, 128}});
  cases.push_back({GetParam(), {1, 4224, 2049, 1, 1, 64}});
  cases.push_back({GetParam(), {2, 4609, 65, 1, 1, 64}, false, {1, 64}});
  cases.push_back({GetParam(), {1, 4801, 1, 2, 2, 96}});
  cases.push_back({GetParam(), {1, 4353, 383, 1, 1, 128}, true});
  check_cases(cases);
}

/// A last wave of few query tiles with many keys, which several CTAs share; with 140 heads behind a full wave; with a batch of equal and of
/// different key lengths.
TEST_P(RecipeOnDevice, SplitLastWave) {
  std::vector<Case> cases;
  cases.push_back({GetParam(), {1, 1, 4097, 1, 1, 128}});
  cases.push_back({GetParam(), {1, 200, 5003, 1, 1, 64}});
  cases.push_back({GetParam(), {2, 193, 4200, 2, 1, 128}, false, {4101, 4097}});
  cases.push_back({GetParam(), {2, 65, 4200, 1, 1, 72}, false, {4200, 4095}});
  cases.push_back({GetParam(), {1, 1, 3457, 140, 70, 40}});
  cases.push_back({GetParam(), {1, 65, 8192, 1, 1, 96}});
  cases.back().with_lse = false;
  check_cases(cases);
}

TEST_P(RecipeOnDevice, KeyLengths) {
  std::vector<Case> cases;
  for (bool const causal : {false, true}) {
    cases.push_back({GetParam(), {3, 65, 257, 2, 1, 128}, causal, {0, 129, 257}});
    cases.push_back({GetParam(), {3, 129, 385, 4, 2, 64}, causal, {1, 128, 384}});
    cases.push_back({GetParam(), {2, 191, 193, 2, 2, 72}, causal, {127, 2}});
    cases.push_back({GetParam(), {2, 63, 1024, 4, 1, 40}, causal, {1023, 0}});
  }
  check_cases(cases);
}

TEST_P(RecipeOnDevice, Varlen) {
  std::vector<Case> cases;
  for (bool const causal : {false, true}) {
    cases.push_back({GetParam(), {1, 300, 400, 4, 2, 128}, causal, {}, {0, 129, 129, 300}, {0, 10, 140, 400}});
    cases.push_back({GetParam(), {1, 385, 513, 2, 1, 64}, causal, {}, {0, 0, 1, 192, 385}, {0, 127, 127, 256, 513}});
    cases.push_back({GetParam(), {1, 322, 450, 2, 2, 96}, causal, {64, 0, 129}, {0, 65, 193, 322}, {0, 65, 193, 450}});
    cases.push_back({GetParam(), {1, 5, 7, 4, 1, 40}, causal, {}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 3, 7}});
  }
  check_cases(cases);
}

TEST_P(RecipeOnDevice, NoQueriesOrNoKeys) {
  check_cases({{GetParam(), {2, 0, 65, 2, 1, 64}},
               {GetParam(), {2, 65, 0, 2, 1, 128}},
               {GetParam(), {1, 64, 32, 2, 1, 64}, false, {}, {0, 0, 64}, {0, 32, 32}}});
}

std::string recipe_test_name(testing::TestParamInfo<char const*> const& parameter) {
  std::string name = parameter.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, RecipeOnDevice, testing::ValuesIn(kRecipes), recipe_test_name);

TEST(OptionsOnDevice, EveryChoiceThatAKernelServes) {
  std::vector<Case> cases;
  for (char const* recipe : {"vc8 expcast=offset126",
                             "vc8 expcast=paper",
                             "vc8 scores=f32",
                             "vc8 scores=f16",
                             "vc8 v_mean=off",
                             "vc8 hadamard=off",
                             "vc8 k_mean=off",
                             "vc8 k_mean=off,hadamard=off,v_mean=off,rounding=nearest",
                             "vc8 top=112",
                             "vc8 scores=f32,top=112",
                             "vc8 expcast=offset126,top=112",
                             "vc8 expcast=offset126,scores=f32",
                             "vc8 emc=off,v_scaling=head",
                             "vc8 order=sequence",
                             "vsmooth8 scores=f32",
                             "vsmooth8 top=112",
                             "vsmooth8 v_mean=off",
                             "vc8s q_block=32",
                             "vc8s q_block=64",
                             "vc8s qk_scaling=head",
                             "vc8s expcast=offset126",
                             "vc8s expcast=paper",
                             "vc8s expcast=offset126,top=112",
                             "vc8s top=112",
                             "vc8s v_mean=off",
                             "vc8s hadamard=off",
                             "vc8s k_mean=off",
                             "vc8s rounding=shaped",
                             "vsmooth8s q_block=32,v_mean=off",
                             "vc8-paper q_block=32",
                             "vc8-paper q_block=64",
                             "vc8-paper v_mean=off",
                             "fp8 qk_scaling=block",
                             "fp8 v_scaling=channel",
                             "sage2 k_block=128"}) {
    cases.push_back({recipe, {1, 193, 509, 2, 1, 128}});
    cases.push_back({recipe, {2, 129, 385, 4, 2, 40}});
    cases.push_back({recipe, {1, 257, 191, 2, 1, 72}, true});
    cases.push_back({recipe, {2, 65, 257, 2, 2, 64}, false, {129, 0}});
  }
  check_cases(cases);
}

TEST(OptionsOnDevice, Permutations) {
  for (char const* recipe : {"vc8", "vc8s", "fp8"}) {
    Sizes const sizes{2, 65, 385, 4, 2, 64};
    OwnedProblem const owned = OwnedProblem::normal(sizes, case_seed(1));
    std::vector<std::int32_t> const permutation = testing_support::random_permutation(sizes, 385, case_seed(2));
    Problem problem = owned.problem();
    problem.permutation = permutation;
    Prepared const prepared = prepare(problem, options_of(recipe));
    expect_close(run_on_device(prepared), expected_result(prepared), fmt::format("{} with a permutation", recipe));
  }
}

TEST(OptionsOnDevice, SoftmaxScales) {
  for (double const softmax_scale : {0.0, 1e-3, 0.5}) {
    for (char const* recipe : kRecipes) {
      OwnedProblem const owned = OwnedProblem::normal({1, 129, 257, 2, 1, 64}, case_seed(3));
      Problem problem = owned.problem();
      problem.softmax_scale = softmax_scale;
      Prepared const prepared = prepare(problem, options_of(recipe));
      expect_close(run_on_device(prepared), expected_result(prepared), fmt::format("{} softmax_scale {}", recipe, softmax_scale));
    }
  }
}

/// Scores far beyond what a head-room of codes can hold: no code passes 126, which would be NaN.
TEST(OptionsOnDevice, LargeScoresNeverOverflow) {
  for (float const factor : {10.0f, 1000.0f}) {
    for (char const* recipe : {"vc8", "vc8 scores=f16", "vc8 scores=f32", "vc8s", "vc8-paper", "vsmooth8", "vsmooth8s", "fp8"}) {
      OwnedProblem owned = OwnedProblem::normal({1, 200, 700, 2, 1, 128}, case_seed(8));
      for (auto* tensor : {&owned.q, &owned.k}) {
        for (float& x : *tensor) x *= factor;
      }
      Output const output = run_on_device(prepare(owned.problem(), options_of(recipe)));
      for (float const x : output.o) ASSERT_LE(std::abs(x), 8.0f) << recipe << " factor " << factor;  // false for NaN
      for (float const x : output.lse) ASSERT_TRUE(std::isfinite(x)) << recipe << " factor " << factor;
    }
  }
}

/// Every tile raises the maximum: row constants move at each of them, and what was summed before is rescaled.
TEST(OptionsOnDevice, RisingMaximum) {
  for (char const* recipe : {"vc8", "vc8 scores=f32", "vsmooth8", "vc8s", "vsmooth8s", "fp8", "vc8-paper", "vc8 top=112"}) {
    Sizes const sizes{1, 70, 3000, 1, 1, 64};
    OwnedProblem owned = OwnedProblem::normal(sizes, case_seed(4));
    for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) owned.q_row(0, i)[0] = 4.0f;
    for (std::int64_t j = 0; j < sizes.seqlen_kv; ++j) owned.k_row(0, j)[0] = static_cast<float>(j) * 0.004f;
    Options options = options_of(recipe);
    options.order = GroupOrder::sequence;
    Prepared const prepared = prepare(owned.problem(), options);
    expect_close(run_on_device(prepared), expected_result(prepared), fmt::format("{} rising maximum", recipe));
  }
}

TEST(NonFiniteOnDevice, AQueryRowIsNanAlone) {
  for (char const* recipe : kRecipes) {
    Sizes const sizes{1, 200, 300, 4, 2, 72};
    OwnedProblem owned = OwnedProblem::normal(sizes, case_seed(5));
    owned.q_row(0, 133, 2)[71] = kNan;
    owned.q_row(0, 7, 0)[0] = std::numeric_limits<float>::infinity();
    Prepared const prepared = prepare(owned.problem(), options_of(recipe));
    Output const output = run_on_device(prepared);
    expect_close(output, expected_result(prepared), fmt::format("{} non-finite query rows", recipe));
    for (std::size_t i = 0; i < output.o.size(); ++i) {
      std::size_t const row_and_head = i / 72;
      ASSERT_EQ(std::isnan(output.o[i]), row_and_head == 133 * 4 + 2 || row_and_head == 7 * 4) << recipe << " element " << i;
    }
    for (std::size_t i = 0; i < output.lse.size(); ++i) {
      ASSERT_EQ(std::isnan(output.lse[i]), i == 2 * 200 + 133 || i == 7) << recipe << " lse " << i;
    }
  }
}

TEST(NonFiniteOnDevice, AKeyOrValueIsNanInItsHeadsOnly) {
  for (char const* recipe : kRecipes) {
    for (bool const in_key : {true, false}) {
      Sizes const sizes{2, 66, 300, 4, 2, 64};
      OwnedProblem owned = OwnedProblem::normal(sizes, case_seed(6));
      (in_key ? owned.k_row(1, 299, 1) : owned.v_row(1, 299, 1))[5] = kNan;
      Prepared const prepared = prepare(owned.problem(), options_of(recipe));
      Output const output = run_on_device(prepared);
      expect_close(output, expected_result(prepared), fmt::format("{} a non-finite {}", recipe, in_key ? "key" : "value"));
      for (std::size_t i = 0; i < output.o.size(); ++i) {
        bool const second_sequence = i >= output.o.size() / 2;
        bool const second_group = i / 64 % 4 >= 2;
        ASSERT_EQ(std::isnan(output.o[i]), second_sequence && second_group) << recipe << " element " << i;
      }
    }
  }
}

/// Finite values whose sum is not: their own head feels it, the head stored before it does not.
TEST(NonFiniteOnDevice, ValuesWhoseMeanOverflowsStayInTheirHead) {
  OwnedProblem owned = OwnedProblem::normal({1, 66, 300, 2, 2, 64}, case_seed(9));
  Options options = options_of("vc8");
  options.order = GroupOrder::sequence;
  Output const before = run_on_device(prepare(owned.problem(), options));
  for (std::int64_t j = 0; j < 300; ++j) std::fill_n(owned.v_row(0, j, 1), 64, 3e38f);
  Output const after = run_on_device(prepare(owned.problem(), options));
  for (std::size_t i = 0; i < after.o.size(); ++i) {
    bool const first_head = i / 64 % 2 == 0;
    ASSERT_TRUE(first_head ? after.o[i] == before.o[i] : !(std::abs(after.o[i]) < 1e30f)) << "element " << i;
  }
}

/// One head whose score bound allows FP16 and one that is far beyond it, in one call.
TEST(ScoreVariants, BothInOneBatch) {
  for (char const* recipe : {"vc8", "vsmooth8", "vc8 expcast=offset126"}) {
    Sizes const sizes{1, 200, 500, 2, 2, 128};
    OwnedProblem owned = OwnedProblem::normal(sizes, case_seed(7));
    for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) {
      for (std::int64_t d = 0; d < sizes.head_dim; ++d) owned.q_row(0, i, 1)[d] *= 1000.0f;
    }
    Prepared const prepared = prepare(owned.problem(), options_of(recipe));
    auto const& view = prepared.impl().view();
    auto const* const variants = view.section<formats::ScoreVariant>(view.layout().score_variant);
    ASSERT_EQ(variants[0], formats::ScoreVariant::f16) << recipe;
    ASSERT_EQ(variants[1], formats::ScoreVariant::f32) << recipe;
    Expected const expected = expected_result(prepared);
    Output const output = run_on_device(prepared);
    expect_close(output, expected, fmt::format("{} with both score variants", recipe));
    for (std::size_t head = 0; head < 2; ++head) {
      Output one_head;
      Expected one_expected;
      for (std::size_t row = 0; row < 200; ++row) {
        for (std::size_t d = 0; d < 128; ++d) {
          one_head.o.push_back(output.o[(row * 2 + head) * 128 + d]);
          one_expected.o.push_back(expected.o[(row * 2 + head) * 128 + d]);
        }
        one_head.lse.push_back(output.lse[head * 200 + row]);
        one_expected.lse.push_back(expected.lse[head * 200 + row]);
      }
      one_expected.codes_may_differ = expected.codes_may_differ;
      expect_close(one_head, one_expected, fmt::format("{} with both score variants, head {}", recipe, head));
    }
  }
}

/// What no kernel serves: the reason of supports() names what to do, and attention() throws the same.
struct Refusal {
  char const* recipe;
  std::int64_t head_dim;
  std::optional<double> softmax_scale;
  char const* advice;  // part of the reason
};

static_assert(!std::is_copy_constructible_v<CudaBuffer> && std::is_nothrow_move_constructible_v<CudaBuffer>);

TEST(Refusals, OutputsThatAreNotAligned) {
  OwnedProblem const owned = OwnedProblem::normal({1, 3, 5, 1, 1, 64}, case_seed(10));
  Prepared const prepared = to_cuda(prepare(owned.problem(), options_of("vc8s")));
  CudaBuffer memory(4096);
  auto* const bytes = static_cast<std::byte*>(memory.data());
  auto const view = nhd_view(bytes + 2, DType::f32, 1, 3, 1, 64);
  MutableTensorView const o{bytes + 2, DType::f32, view.shape, view.stride};
  EXPECT_THROW(attention(prepared, o), Error);
  MutableTensorView const aligned{bytes, DType::f32, view.shape, view.stride};
  EXPECT_THROW(attention(prepared, aligned, {reinterpret_cast<float*>(bytes + 2049), 3}), Error);
}

TEST(Refusals, SayWhatToDo) {
  std::vector<Refusal> refusals = {{"vc8", 32, {}, "head_dim"},
                                   {"vc8 qk=nvfp4", 64, {}, "qk=e4m3"},
                                   {"vc8 qk=bf16", 64, {}, "qk=e4m3"},
                                   {"vc8 v=bf16", 64, {}, "v=e4m3"},
                                   {"exact", 64, {}, "qk=e4m3"},
                                   {"vc8 block=64", 64, {}, "block=128"},
                                   {"vc8s k_block=64", 64, {}, "k_block=128"},
                                   {"vc8s q_mean=on", 64, {}, "q_mean=off"},
                                   {"vc8 expcast=affine", 64, {}, "expcast"},
                                   {"vc8", 64, -0.125, "softmax_scale"}};
  for (std::int64_t const head_dim : {136, 192, 256}) refusals.push_back({"vc8", head_dim, {}, "head_dim"});
  for (Refusal const& refusal : refusals) {
    SCOPED_TRACE(fmt::format("{} head_dim {}", refusal.recipe, refusal.head_dim));
    OwnedProblem const owned = OwnedProblem::normal({1, 3, 5, 1, 1, refusal.head_dim}, case_seed(8));
    Options const options = options_of(refusal.recipe);
    Problem problem = owned.problem();
    problem.softmax_scale = refusal.softmax_scale;
    Support const support = supports(problem, options, Device::cuda);
    EXPECT_FALSE(support.ok);
    EXPECT_NE(support.reason.find(refusal.advice), std::string::npos) << support.reason;
    Prepared const on_device = to_cuda(prepare(problem, options));
    try {
      run(on_device);
      ADD_FAILURE() << "attention() must throw: " << support.reason;
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_EQ(support.reason, error.what());
    }
  }
}

TEST(Refusals, WhatIsServedIsNotRefused) {
  for (char const* recipe : kRecipes) {
    for (std::int64_t head_dim = 40; head_dim <= 128; head_dim += 8) {
      OwnedProblem const owned({1, 3, 5, 1, 1, head_dim});
      EXPECT_EQ(supports(owned.problem(), options_of(recipe), Device::cuda).reason, "") << recipe << " head_dim " << head_dim;
    }
  }
}

std::optional<std::uint32_t> seed_argument(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string(argv[i]) == "--seed") return static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
  }
  return {};
}

}  // namespace
}  // namespace vcattn::cuda_test

int main(int argc, char** argv) {
  using namespace vcattn;
  testing::InitGoogleTest(&argc, argv);
  if (std::string const reason = cuda_unavailable_reason(); !reason.empty()) {
    fmt::print(stderr, "vcattn_gpu_attention_test needs a CUDA device: {}\n", reason);
    return 2;
  }
  std::uint32_t const seed = cuda_test::seed_argument(argc, argv).value_or(std::random_device{}() % 1'000'000);
  cuda_test::set_base_seed(seed);
  fmt::print("{}; inputs of --seed {}\n", cuda_device_description(), seed);
  int const status = RUN_ALL_TESTS();
  cuda_test::Worst::print();
  return status;
}
