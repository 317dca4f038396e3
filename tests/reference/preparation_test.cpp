// What every step of the reference preparation must satisfy, whatever the numbers are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "problems.hpp"
#include "reference/codecs.hpp"
#include "reference/preparation.hpp"

namespace vcattn {
namespace {

using namespace testing_support;
using reference::Coded;
using reference::KeyValueHead;
using reference::Matrix;
using reference::PreparedSequence;
using reference::QueryHead;

constexpr double kCodesPerNat = 8 * std::numbers::log2e;

double largest_magnitude(Matrix const& values) { return reference::amax(values); }

TEST(ReferenceStages, HadamardOfSizeTwo) {
  Matrix rows(1, 2);
  rows(0, 0) = 3;
  rows(0, 1) = 1;
  Matrix const rotated = reference::hadamard(rows);
  EXPECT_NEAR(rotated(0, 0), 4 / std::numbers::sqrt2, 1e-15);
  EXPECT_NEAR(rotated(0, 1), 2 / std::numbers::sqrt2, 1e-15);
}

TEST(ReferenceStages, EnergyRemovedByHand) {
  // Values 0 0 4 4: the mean is 2, the energy 16. Blocks of 2 in this order leave nothing, interleaved they remove nothing.
  Matrix v(4, 1);
  v(2, 0) = v(3, 0) = 4;
  EXPECT_EQ(reference::energy_removed(v, {0, 1, 2, 3}, 2), 1.0);
  EXPECT_EQ(reference::energy_removed(v, {0, 2, 1, 3}, 2), 0.0);
  EXPECT_EQ(reference::energy_removed(v, {0, 1, 2, 3}, 4), 0.0);
  EXPECT_DOUBLE_EQ(reference::energy_removed(v, {0, 1, 2, 3}, 3), 1.0 - (2 * 16.0 / 9 + 64.0 / 9) / 16);
}

TEST(ReferenceStages, ReachesTheEndsOfEveryFormat) {
  Matrix rows(2, 16);
  for (std::int64_t c = 0; c < 16; ++c) rows(0, c) = static_cast<double>(c) - 15;
  struct Expected {
    reference::CodeFormat format;
    double descale;
    std::uint32_t code_of_amax;
  };
  for (auto const& [format, descale, code] :
       {Expected{reference::CodeFormat::int8, 15.0 / 127, 0x81}, Expected{reference::CodeFormat::e4m3, 15.0 / 448, 0xFE},
        Expected{reference::CodeFormat::nvfp4, 15.0 / 2688, 0xF}}) {
    reference::Descales const descales = reference::amax_descales(rows, format, 1);
    EXPECT_EQ(descales.values[0], static_cast<float>(descale));
    EXPECT_EQ(descales.values[1], 1.0f) << "a row of zeros";
    Coded const coded = reference::encode_rows(rows, format, descales);
    EXPECT_EQ(coded.codes[0], code);
    EXPECT_EQ(coded.codes[15], 0u);
    EXPECT_NEAR(coded.values(0, 0) * descales.of_row(0), -15.0, 1e-5);
    for (std::size_t c = 16; c < 32; ++c) EXPECT_EQ(coded.codes[c], 0u);
  }
}

struct UnitCase {
  float q_size, k_size;
  std::int64_t head_dim;
  double softmax_scale;
};
class UnitScaling : public testing::TestWithParam<UnitCase> {};
INSTANTIATE_TEST_SUITE_P(Magnitudes, UnitScaling,
                         testing::Values(UnitCase{1, 1, 64, 0.125}, UnitCase{1, 1, 128, 0.0883883}, UnitCase{1e-3f, 1, 128, 0.1},
                                         UnitCase{40, 50, 128, 0.1}, UnitCase{1e-18f, 1e-17f, 32, 0.2}, UnitCase{1, 300, 256, 0.0625},
                                         UnitCase{0, 1, 64, 0.125}, UnitCase{1, 0, 64, 0.125}, UnitCase{3, 2, 64, -0.125},
                                         UnitCase{1, 1, 64, 0.0}));

TEST_P(UnitScaling, ProductsAreCodeUnitsAndFitFp16) {
  auto const [q_size, k_size, head_dim, softmax_scale] = GetParam();
  OwnedProblem owned = OwnedProblem::normal({1, 70, 150, 2, 1, head_dim}, 3);
  for (float& x : owned.q) x *= q_size;
  for (float& x : owned.k) x *= k_size;
  for (std::int64_t i = 0; i < 70; ++i) owned.q_row(0, i, 1)[0] *= 5.0f;  // the second head has its own range
  Problem problem = owned.problem();
  problem.softmax_scale = softmax_scale;
  Options options = recipe_options(Recipe::vc8);
  options.k_mean = options.hadamard = false;
  options.qk_rounding = QkRounding::nearest;
  PreparedSequence const prepared = reference::prepare_reference(problem, options)[0];
  KeyValueHead const& kv = prepared.kv[0];
  double const q_code_max = head_dim > 128 ? 8 : 16;
  Matrix const k = reference::load_rows(problem.k, 0, 0, 0, 150);
  for (std::int64_t h = 0; h < 2; ++h) {
    QueryHead const& q = prepared.q[static_cast<std::size_t>(h)];
    auto const n = static_cast<double>(q.score_multiplier);
    EXPECT_EQ(n, std::round(n));
    EXPECT_GE(n, softmax_scale == 0 ? 0.0 : 1.0);
    double const units = q.descale.of_row(0) * kv.k_descale.of_row(0) * reference::softmax_scale_f32(problem) * kCodesPerNat;
    EXPECT_NEAR(units, n, 1e-6 * n);
    double const q_max = largest_magnitude(q.codes.values);
    double const k_max = largest_magnitude(kv.k.values);
    EXPECT_LE(q_max, q_code_max);
    EXPECT_LE(k_max, 31.0);
    EXPECT_LT(q_max * k_max * static_cast<double>(q.codes.cols), 65504.0);
    EXPECT_TRUE(std::isfinite(units));

    Matrix const rows = reference::load_rows(problem.q, 0, h, 0, 70);
    for (std::int64_t i = 0; i < 70; ++i) {
      double const exact = softmax_scale * kCodesPerNat * reference::dot(rows, i, k, i);
      double const norms = std::sqrt(reference::dot(rows, i, rows, i) * reference::dot(k, i, k, i));
      double const rounding = std::abs(softmax_scale) * kCodesPerNat * norms / 8;  // both codes to half a step of 3 mantissa bits
      EXPECT_NEAR(n * reference::dot(q.codes.values, i, kv.k.values, i), exact, rounding + 0.02);
    }
  }
}

TEST(ReferencePreparation, KMeanIsUndoneByTheCorrection) {
  OwnedProblem owned = OwnedProblem::normal({1, 4, 40, 1, 1, 64});
  for (std::int64_t j = 0; j < 40; ++j) {
    for (std::int64_t d = 0; d < 64; ++d) owned.k_row(0, j)[d] += 50.0f;
  }
  PreparedSequence const prepared = reference::prepare_reference(owned.problem(), recipe_options(Recipe::vc8s))[0];
  Matrix const q = reference::load_rows(owned.problem().q, 0, 0, 0, 4);
  Matrix const k = reference::load_rows(owned.problem().k, 0, 0, 0, 40);
  for (std::int64_t i = 0; i < 4; ++i) {
    double mean_score = 0;
    for (std::int64_t j = 0; j < 40; ++j) mean_score += reference::dot(q, i, k, j) / 40;
    EXPECT_NEAR(prepared.q[0].lse_correction[static_cast<std::size_t>(i)], mean_score / 8, 1e-4);
    // Codes carry the rest: q . (k - mean), to INT8 accuracy.
    double const coded = reference::dot(prepared.q[0].codes.values, i, prepared.kv[0].k.values, 7) * prepared.q[0].descale.of_row(i) *
                         prepared.kv[0].k_descale.of_row(7);
    EXPECT_NEAR(coded, reference::dot(q, i, k, 7) - mean_score, 0.5);
  }
}

class ValueBlocks : public testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Rows, ValueBlocks, testing::Values(32, 64, 128));

TEST_P(ValueBlocks, CompensatedMeansMakeTheErrorOfABlockAndOfTheHeadSumToZero) {
  std::int64_t const seqlen_kv = 211;
  OwnedProblem const owned = OwnedProblem::normal({1, 1, seqlen_kv, 1, 1, 32});
  Options options = recipe_options(Recipe::vc8s);
  options.v_block = GetParam();
  Sizes const sizes = owned.sizes();
  std::vector<std::int32_t> const permutation = random_permutation(sizes, seqlen_kv, 4);
  Problem problem = owned.problem();
  problem.permutation = permutation;
  KeyValueHead const kv = reference::prepare_reference(problem, options)[0].kv[0];
  options.emc = false;
  KeyValueHead const uncompensated = reference::prepare_reference(problem, options)[0].kv[0];
  Matrix const v = reference::load_rows(problem.v, 0, 0, 0, seqlen_kv);
  std::vector<double> head_error(32);
  ASSERT_EQ(kv.v_mean.rows, (seqlen_kv + options.v_block - 1) / options.v_block);
  for (std::int64_t block = 0; block < kv.v_mean.rows; ++block) {
    std::int64_t const first = block * options.v_block;
    std::int64_t const last = std::min<std::int64_t>(first + options.v_block, seqlen_kv);
    for (std::int64_t c = 0; c < 32; ++c) {
      double error = 0;
      double largest = 0;
      for (std::int64_t key = first; key < last; ++key) {
        double const decoded = (kv.v.values(c, key) + kv.v_mean(block, c)) * kv.v_descale.of_row(c) +
                               static_cast<double>(uncompensated.v_global_mean[static_cast<std::size_t>(c)]);
        double const original = v(kv.order[static_cast<std::size_t>(key)], c);
        error += decoded - original;
        largest = std::max(largest, std::abs(decoded - original));
      }
      double const mean_resolution = std::abs(kv.v_mean(block, c)) * 0x1p-11 * kv.v_descale.of_row(c);
      EXPECT_LE(std::abs(error) / static_cast<double>(last - first), mean_resolution + 1e-6);
      EXPECT_LE(largest, 0.3) << "E4M3 to half a step of its largest octave";
      head_error[static_cast<std::size_t>(c)] += error;
    }
  }
  // The global mean takes up what is left; it is an FP32 number.
  for (std::size_t c = 0; c < 32; ++c) {
    double const added = static_cast<double>(kv.v_global_mean[c]) - static_cast<double>(uncompensated.v_global_mean[c]);
    double const fp32_step = std::abs(static_cast<double>(kv.v_global_mean[c])) * 0x1p-24 + 1e-12;
    EXPECT_NEAR(added, -head_error[c] / static_cast<double>(seqlen_kv), 2 * fp32_step);
  }
}

TEST(ReferencePreparation, MeansNeverOverflowFp16) {
  OwnedProblem owned = OwnedProblem::normal({1, 1, 256, 1, 1, 32});
  for (std::int64_t j = 0; j < 256; ++j) {
    for (std::int64_t d = 0; d < 32; ++d) owned.v_row(0, j)[d] = j < 128 ? 1e6f : -1e6f;  // residuals 0, means huge
  }
  KeyValueHead const kv = reference::prepare_reference(owned.problem(), recipe_options(Recipe::vc8s))[0].kv[0];
  EXPECT_EQ(largest_magnitude(kv.v_mean), 32768.0);
  EXPECT_EQ(kv.v_mean(0, 0), -kv.v_mean(1, 0));
  EXPECT_NEAR(kv.v_mean(0, 0) * kv.v_descale.of_row(0), 1e6, 1e6 * 0x1p-20);
}

TEST(ReferencePreparation, QueryMeansAreTakenOutPerTile) {
  OwnedProblem owned = OwnedProblem::normal({1, 150, 20, 1, 1, 64});
  for (std::int64_t i = 0; i < 150; ++i) owned.q_row(0, i)[3] += i < 128 ? 10.0f : -20.0f;
  QueryHead const q = reference::prepare_reference(owned.problem(), recipe_options(Recipe::sage3))[0].q[0];
  ASSERT_EQ(q.tile_mean.rows, 2);
  EXPECT_NEAR(q.tile_mean(0, 3), 10.0, 0.5);
  EXPECT_NEAR(q.tile_mean(1, 3), -20.0, 1.0);
  for (std::int64_t c = 0; c < 64; ++c) {
    double sum = 0;
    for (std::int64_t i = 0; i < 128; ++i) sum += q.codes.scaled(i, c) == 0 ? 0 : q.codes.values(i, c) * q.descale.of_row(i);
    EXPECT_NEAR(sum / 128, 0.0, 0.1);
  }
}

/// Relative L2 error of all scores q . k that rounding Q and K causes.
double score_error(Problem const& problem, Options const& options) {
  PreparedSequence const prepared = reference::prepare_reference(problem, options)[0];
  QueryHead const& q = prepared.q[0];
  KeyValueHead const& kv = prepared.kv[0];
  Matrix const rows = reference::load_rows(problem.q, 0, 0, 0, q.codes.rows);
  Matrix const keys = reference::load_rows(problem.k, 0, 0, 0, kv.k.rows);
  std::vector<double> coded, exact;
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t j = 0; j < keys.rows; ++j) {
      coded.push_back(reference::dot(q.codes.values, i, kv.k.values, j) * q.descale.of_row(i) * kv.k_descale.of_row(j));
      exact.push_back(reference::dot(rows, i, keys, j));
    }
  }
  return relative_l2(coded, exact);
}

/// Queries with energy in few directions: errors of K can be pushed into the others.
TEST(ReferencePreparation, ShapedRoundingLowersTheScoreError) {
  OwnedProblem owned = OwnedProblem::normal({1, 120, 150, 1, 1, 64}, 8);
  for (std::int64_t i = 0; i < 120; ++i) {
    for (std::int64_t d = 0; d < 64; ++d) owned.q_row(0, i)[d] = owned.q_row(0, i)[d] * 0.1f + owned.q_row(0, i)[d % 4];
  }
  for (Recipe const recipe : {Recipe::vc8, Recipe::vc8s, Recipe::vc8_paper, Recipe::vsmooth4}) {
    Options options = recipe_options(recipe);
    options.k_mean = options.q_mean = options.hadamard = false;
    options.qk_rounding = QkRounding::nearest;
    double const nearest = score_error(owned.problem(), options);
    options.qk_rounding = QkRounding::shaped_k;
    double const shaped_k = score_error(owned.problem(), options);
    options.qk_rounding = QkRounding::shaped;
    double const shaped = score_error(owned.problem(), options);
    EXPECT_LT(shaped_k, 0.95 * nearest) << recipe_name(recipe);
    EXPECT_LT(shaped, 1.05 * shaped_k) << recipe_name(recipe);
  }
}

/// H = U diag U^T, and without energy no channel feeds into another.
TEST(ReferenceStages, ShapingFactorsTheMoment) {
  std::int64_t const n = 8;
  OwnedProblem const owned = OwnedProblem::normal({1, 20, 1, 1, 1, n}, 9);
  Matrix h(n, n);
  reference::add_second_moment(h, reference::load_rows(owned.problem().q, 0, 0, 0, 20));
  double trace = 0;
  for (std::int64_t i = 0; i < n; ++i) trace += h(i, i);
  reference::Shaping const shaping = reference::shaping_of(h, 127);
  Matrix const& u = shaping.u;
  for (std::int64_t i = 0; i < n; ++i) h(i, i) += 0.01 * trace / static_cast<double>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(u(i, i), 1.0);
    for (std::int64_t j = 0; j < i; ++j) EXPECT_EQ(u(i, j), 0.0);
  }
  // U^-1 H U^-T must be diagonal: solve from the last row up.
  auto const solve = [&](Matrix columns) {
    for (std::int64_t i = n - 1; i >= 0; --i) {
      for (std::int64_t k = i + 1; k < n; ++k) {
        for (std::int64_t c = 0; c < n; ++c) columns(i, c) -= u(i, k) * columns(k, c);
      }
    }
    return columns;
  };
  Matrix const diagonal = solve(reference::transpose(solve(h)));
  for (std::int64_t i = 0; i < n; ++i) {
    EXPECT_GT(diagonal(i, i), 0.0);
    for (std::int64_t j = 0; j < n; ++j) {
      if (i != j) {
        EXPECT_NEAR(diagonal(i, j), 0.0, 1e-5 * trace);
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double product = 0;
      for (std::int64_t k = 0; k < n; ++k) product += u(i, k) * shaping.w(k, j);
      EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 1e-12);
    }
  }
  Matrix const identity = reference::shaping_of(Matrix(n, n), 127).w;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) EXPECT_EQ(identity(i, j), i == j ? 1.0 : 0.0);
  }
}

TEST(ReferencePreparation, PaddingAndNonFiniteRowsReachNothingElse) {
  OwnedProblem owned = OwnedProblem::normal({1, 6, 10, 1, 1, 32});
  std::vector<std::int32_t> const seqused = {7};
  Options const options = recipe_options(Recipe::vc8);
  Problem problem = owned.problem();
  problem.seqused_k = seqused;
  PreparedSequence const clean = reference::prepare_reference(problem, options)[0];
  for (std::int64_t j = 7; j < 10; ++j) {
    owned.k_row(0, j)[0] = std::numeric_limits<float>::quiet_NaN();
    owned.v_row(0, j)[0] = 1e4f;
  }
  PreparedSequence const padded = reference::prepare_reference(problem, options)[0];
  EXPECT_EQ(padded.kv[0].k.codes, clean.kv[0].k.codes);
  EXPECT_EQ(padded.kv[0].v.codes, clean.kv[0].v.codes);
  EXPECT_EQ(padded.kv[0].v_mean.data, clean.kv[0].v_mean.data);
  EXPECT_EQ(padded.q[0].lse_correction, clean.q[0].lse_correction);

  owned.k_row(0, 2)[1] = std::numeric_limits<float>::infinity();
  PreparedSequence const poisoned = reference::prepare_reference(problem, options)[0];
  for (double const correction : poisoned.q[0].lse_correction) EXPECT_TRUE(std::isnan(correction));
}

TEST(ReferencePreparation, HeadDimIsPaddedToAPowerOfTwo) {
  OwnedProblem const owned = OwnedProblem::normal({1, 3, 5, 1, 1, 72});
  PreparedSequence const prepared = reference::prepare_reference(owned.problem(), recipe_options(Recipe::sage2))[0];
  EXPECT_EQ(prepared.q[0].codes.cols, 128);
  EXPECT_EQ(prepared.kv[0].v.rows, 128);
  EXPECT_EQ(prepared.kv[0].v.cols, 128);
  for (std::int64_t c = 72; c < 128; ++c) EXPECT_EQ(prepared.q[0].codes.values(1, c), 0.0);
  EXPECT_FLOAT_EQ(static_cast<float>(reference::softmax_scale_f32(owned.problem())), static_cast<float>(1 / std::sqrt(72.0)));
}

}  // namespace
}  // namespace vcattn
