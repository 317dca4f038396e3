// Sums of the CUDA attention: exact where every step is exact, and over long sequences no worse with a mean in V than without.
//
// The FP8 accumulator of sm_90 keeps 13 bits and truncates (src/reference/tensor_core.hpp), so a sum that grows loses what is added to it.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cuda/attention_case.hpp"
#include "reference/attention.hpp"

namespace vcattn::cuda_test {
namespace {

constexpr std::int64_t kBlock = 128;

/// Residuals of a block of keys: E4M3 values / 32 whose sum is 0 and whose largest magnitude is 14.
std::array<float, kBlock> exact_residuals(std::mt19937& random) {
  constexpr std::array kMagnitudes = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14};
  std::array<float, kBlock> residuals{};
  for (std::size_t i = 0; i < residuals.size(); i += 2) {
    auto const magnitude = static_cast<float>(i == 0 ? 14 : kMagnitudes[random() % kMagnitudes.size()]);
    residuals[i] = magnitude;
    residuals[i + 1] = -magnitude;
  }
  std::shuffle(residuals.begin(), residuals.end(), random);
  return residuals;
}

/// V whose means, residuals and descales are exact. with_means: V = global + block mean + residual, small integers times a power of two of
/// the channel; else the residual alone.
void fill_exact_values(OwnedProblem& owned, bool with_means, std::mt19937& random) {
  Sizes const& sizes = owned.sizes();
  for (std::int64_t head = 0; head < sizes.num_heads_kv; ++head) {
    for (std::int64_t d = 0; d < sizes.head_dim; ++d) {
      float const unit = with_means ? std::ldexp(1.0f, static_cast<int>(random() % 7) - 3) : 0.25f;
      float const global_mean = with_means ? static_cast<float>(random() % 17) - 8 : 0.0f;
      float block_mean = 0;
      for (std::int64_t first = 0; first < sizes.seqlen_kv; first += kBlock) {
        block_mean = first / kBlock % 2 == 1 ? -block_mean : with_means ? static_cast<float>(random() % 8) : 0.0f;  // they sum to 0
        auto const residuals = exact_residuals(random);
        for (std::int64_t j = 0; j < kBlock; ++j) {
          owned.v_row(0, first + j, head)[d] = (residuals[static_cast<std::size_t>(j)] + global_mean + block_mean) * unit;
        }
      }
    }
  }
}

/// Query i looks along channel i: half of the keys, another one for every channel, have the largest score, the others are out of reach.
void fill_selecting_scores(OwnedProblem& owned, std::mt19937& random) {
  Sizes const& sizes = owned.sizes();
  for (std::int64_t head = 0; head < sizes.num_heads; ++head) {
    for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) owned.q_row(0, i, head)[i % sizes.head_dim] = 64.0f;
  }
  std::vector<float> signs(static_cast<std::size_t>(sizes.seqlen_kv), 1.0f);
  std::fill(signs.begin(), signs.begin() + static_cast<std::ptrdiff_t>(signs.size() / 2), -1.0f);
  for (std::int64_t head = 0; head < sizes.num_heads_kv; ++head) {
    for (std::int64_t d = 0; d < sizes.head_dim; ++d) {
      std::shuffle(signs.begin(), signs.end(), random);
      for (std::int64_t j = 0; j < sizes.seqlen_kv; ++j) owned.k_row(0, j, head)[d] = signs[static_cast<std::size_t>(j)];
    }
  }
}

enum class ScoreKind { flat, selecting };

Prepared exact_problem(std::string const& recipe, ScoreKind scores, std::uint32_t case_number) {
  Options options = options_of(recipe);
  options.hadamard = false;
  options.order = GroupOrder::sequence;
  std::mt19937 random(case_seed(case_number));
  OwnedProblem owned({1, 130, 512, 2, 1, 64});
  fill_exact_values(owned, options.v_mean, random);
  if (scores == ScoreKind::selecting) fill_selecting_scores(owned, random);
  return prepare(owned.problem(), options);
}

double ulp_of(double x) { return static_cast<double>(std::nextafter(static_cast<float>(x), INFINITY) - static_cast<float>(x)); }

/// Largest |o| of every (head, channel).
std::vector<double> channel_magnitudes(std::vector<double> const& o, std::size_t channels) {
  std::vector<double> magnitudes(channels);
  for (std::size_t i = 0; i < o.size(); ++i) magnitudes[i % channels] = std::max(magnitudes[i % channels], std::abs(o[i]));
  return magnitudes;
}

/// lse is logf, a product and three sums of numbers below 16: five roundings of half a unit in the last place of such a number.
constexpr double kLseRounding = 5 * 0x1p-21;

/// tolerance_ulps: of the largest number of the channel.
void expect_exact(std::string const& recipe, double tolerance_ulps) {
  for (ScoreKind const scores : {ScoreKind::flat, ScoreKind::selecting}) {
    std::string const where = fmt::format("{} {}", recipe, scores == ScoreKind::flat ? "flat" : "selecting");
    Prepared const prepared = exact_problem(recipe, scores, 40);
    Expected const expected = expected_result(prepared);
    Output const output = run_on_device(prepared);
    std::vector<double> const magnitudes = channel_magnitudes(expected.o, 2 * 64);
    double largest = 0;
    for (std::size_t i = 0; i < output.o.size(); ++i) {
      auto const rounded = static_cast<double>(static_cast<float>(expected.o[i]));
      largest = std::max(largest, std::abs(static_cast<double>(output.o[i]) - rounded) / ulp_of(magnitudes[i % magnitudes.size()]));
    }
    EXPECT_LE(largest, tolerance_ulps) << where;
    Worst::of("o of exact problems, ulp").see(largest, where);
    for (std::size_t i = 0; i < output.lse.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(output.lse[i]), expected.lse[i], kLseRounding) << where << " row " << i;
    }
  }
}

/// Code 120 is 256: row sums are powers of two, and so is what O is multiplied by.
TEST(ExactProblems, EqualBitsWhereTheRowSumIsAPowerOfTwo) {
  for (char const* recipe : {"vc8 scores=f32,top=120", "vc8 scores=f32,expcast=offset126,top=120", "vsmooth8 top=120", "vc8s top=120",
                             "vsmooth8s top=120", "vc8-paper", "fp8 top=120"}) {
    expect_exact(recipe, 0);
  }
}

/// Elsewhere the reciprocal of the row sum and the product with it round: two roundings, at most 2 units in the last place.
TEST(ExactProblems, RoundingOfTheDivisionOtherwise) {
  for (char const* recipe : {"vc8", "vc8 expcast=offset126", "vsmooth8", "vc8s", "vsmooth8s", "fp8"}) expect_exact(recipe, 2);
}

TEST(LongSequences, ConstantValuesComeOutConstant) {
  constexpr float kValue = 1.7f;
  // With block means only sums of zeros go through the FP8 accumulator. Whole values lose up to 2^-13 in each of the four steps of a tile,
  // and so do the row sums: together less than a quarter of the last place of BF16.
  constexpr std::pair<char const*, double> kCases[] = {{"vc8", 1e-5}, {"vc8s", 1e-5}, {"fp8", 0x1p-10}};
  for (auto const& [recipe, tolerance] : kCases) {
    OwnedProblem owned = OwnedProblem::normal({1, 64, 131'072, 1, 1, 64}, case_seed(41));
    for (std::size_t i = 0; i < owned.v.size(); ++i) owned.v[i] = i % 2 == 0 ? kValue : -kValue;
    Options options = options_of(recipe);
    options.order = GroupOrder::sequence;  // all orders are the same here
    Output const output = run_on_device(prepare(owned.problem(), options));
    double largest = 0;
    for (std::size_t i = 0; i < output.o.size(); ++i) {
      auto const expected = static_cast<double>(i % 2 == 0 ? kValue : -kValue);
      largest = std::max(largest, std::abs(static_cast<double>(output.o[i]) / expected - 1));
    }
    EXPECT_LE(largest, tolerance) << recipe;
    Worst::of("constant V, relative").see(largest, recipe);
  }
}

/// What is added to V ~ N(0, 1).
enum class ValueMean { none, constant, halves };

constexpr struct {
  ValueMean kind;
  char const* name;
} kValueMeans[] = {{ValueMean::none, "zero mean"}, {ValueMean::constant, "mean 0.5"}, {ValueMean::halves, "halves +0.6 and -0.6"}};

void add_mean(OwnedProblem& owned, ValueMean kind) {
  if (kind == ValueMean::none) return;
  std::size_t const half = owned.v.size() / 2;
  for (std::size_t i = 0; i < owned.v.size(); ++i) owned.v[i] += kind == ValueMean::constant ? 0.5f : i < half ? 0.6f : -0.6f;
}

/// Root mean square errors in units of sigma of V.
struct LongErrors {
  double against_codes = 0;  // sums of the same codes in double: what accumulators lose
  double against_exact = 0;  // softmax(Q K^T) V
};

constexpr char const* kLongRecipes[] = {"vc8", "vsmooth8", "vc8s", "fp8"};

/// Inputs of one kind, and what the references make of them with every recipe.
struct LongProblem {
  OwnedProblem owned;
  reference::AttentionResult exact;
  std::array<Prepared, std::size(kLongRecipes)> prepared;
  std::array<Expected, std::size(kLongRecipes)> expected;
};

std::vector<LongProblem> long_problems(OwnedProblem const& base) {
  std::vector<LongProblem> problems;
  for (auto const& mean : kValueMeans) {
    problems.push_back({base, {}, {}, {}});
    add_mean(problems.back().owned, mean.kind);
  }
  constexpr std::size_t kTasks = std::size(kLongRecipes) + 1;
  tbb::parallel_for(std::size_t{0}, problems.size() * kTasks, [&](std::size_t task) {
    LongProblem& problem = problems[task / kTasks];
    std::size_t const recipe = task % kTasks;
    if (recipe == std::size(kLongRecipes)) {
      problem.exact = reference::exact_attention(problem.owned.problem());
      return;
    }
    Options options = options_of(kLongRecipes[recipe]);
    options.order = GroupOrder::sequence;
    problem.prepared[recipe] = prepare(problem.owned.problem(), options);
    problem.expected[recipe] = expected_result(problem.prepared[recipe]);
  });
  return problems;
}

constexpr std::int64_t kLongKeys = 75'776;  // of a video model
constexpr double kGrowth = 1.1;
/// FP32 sums over the tiles round once per tile, by 2^-25 of a sigma or so: sqrt(592) * 2^-25. A ratio of errors below that says nothing.
double const kFloor = std::sqrt(static_cast<double>(kLongKeys / kBlock)) * 0x1p-25;

/// A mean in V must not cost accuracy: the error against exact attention stays within 1.1 times that of the same codes summed in double.
/// (Codes of larger values and of their probabilities have larger errors of their own, which no accumulator can undo.)
/// Flat scores over block means are exact but for FP32 sums, with a mean or without.
void expect_no_growth(OwnedProblem const& base, bool flat) {
  std::string const scores = flat ? "flat" : "random";
  std::vector<LongProblem> const problems = long_problems(base);
  for (std::size_t recipe = 0; recipe < std::size(kLongRecipes); ++recipe) {
    LongErrors without;
    for (std::size_t i = 0; i < problems.size(); ++i) {
      std::string const where = fmt::format("{}, {} scores, {}", kLongRecipes[recipe], scores, kValueMeans[i].name);
      Output const output = run_on_device(problems[i].prepared[recipe]);
      expect_close(output, problems[i].expected[recipe], where);
      LongErrors const errors{rms_difference(output.o_double(), problems[i].expected[recipe].o),
                              rms_difference(output.o_double(), problems[i].exact.o)};
      fmt::print("  {}: rms error / sigma {:.3g} against the codes, {:.3g} against exact\n", where, errors.against_codes,
                 errors.against_exact);
      if (i == 0) without = errors;
      double const of_codes = rms_difference(problems[i].expected[recipe].o, problems[i].exact.o);
      EXPECT_LE(errors.against_exact, kGrowth * of_codes + kFloor) << where;
      Worst::of("error against exact, over that of the codes alone").see(errors.against_exact / (of_codes + kFloor), where);
      bool const block_means = problems[i].prepared[recipe].options().v_mean;
      if (flat && block_means) {
        EXPECT_LE(errors.against_exact, kGrowth * without.against_exact + kFloor) << where;
      }
    }
  }
}

TEST(LongSequences, AMeanInVCostsNothingFlatScores) {
  OwnedProblem base = OwnedProblem::normal({1, 1, kLongKeys, 4, 4, 128}, case_seed(42));  // all rows would be the same
  std::fill(base.q.begin(), base.q.end(), 0.0f);
  expect_no_growth(base, true);
}

TEST(LongSequences, AMeanInVCostsNothingRandomScores) {
  expect_no_growth(OwnedProblem::normal({1, 64, kLongKeys, 1, 1, 128}, case_seed(43)), false);
}

}  // namespace
}  // namespace vcattn::cuda_test
