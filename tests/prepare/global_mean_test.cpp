// What is stored of V keeps the mean of the head: flat attention, which sees nothing else, is exact. [EQ-EMC]

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/run.hpp"
#include "core/fixed_order.hpp"
#include "formats/codes.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/problems.hpp"
#include "vcattn/attention.hpp"

namespace vcattn {
namespace {

using formats::kTileRows;
using testing_support::OwnedProblem;
using testing_support::run;
using testing_support::Sizes;

Options with_emc(Options options, bool emc) {
  options.emc = emc;
  return options;
}

std::span<float const> global_mean(Prepared const& prepared) {
  auto const& section = prepared.impl().layout.v_global_mean;
  return {prepared.impl().view().section<float>(section), section.bytes / sizeof(float)};
}

/// Sum of count values, value(i) the i-th, in the order of [EQ-FIXED-ORDER].
template <int kPartials, typename Value>
float fixed_order_sum(std::int64_t count, Value value) {
  std::array<float, kPartials> partials{};
  for (std::int64_t i = 0; i < count; ++i) partials[static_cast<std::size_t>(i % kPartials)] += value(i);
  return core::tree_sum(partials.data(), kPartials);
}

// To the bit -------------------------------------------------------------------------------------------------------------------------

using BitsCase = std::tuple<Recipe, std::int32_t, std::int64_t>;  // recipe, V block, keys

class GlobalMeanBits : public testing::TestWithParam<BitsCase> {};

/// One channel of one head, as docs/equations.md writes it down.
class WrittenDown {
 public:
  /// sorted: [Sk] values of the channel; g: their mean.
  WrittenDown(Prepared const& prepared, std::vector<float> sorted, float g, int channel)
      : prepared_(prepared), sorted_(std::move(sorted)), g_(g), channel_(channel) {}

  float stored_global_mean() const {
    auto const keys = static_cast<std::int64_t>(sorted_.size());
    float const lost =
        fixed_order_sum<core::kTilePartials>(formats::ceil_div(keys, kTileRows), [&](std::int64_t j) { return lost_of_tile(j); });
    return g_ + lost / static_cast<float>(keys);
  }

 private:
  float lost_of_tile(std::int64_t j) const {
    auto const& impl = prepared_.impl();
    auto const& l = impl.layout;
    std::int64_t const row = j * l.head_dim_padded + channel_;  // one head: its tiles are the first
    std::array<float, kTileRows> decoded{};
    auto const* const factors = l.v_scale_factors.bytes == 0 ? nullptr : impl.view().section<std::uint8_t>(l.v_scale_factors) + row * 8;
    formats::decode_row(formats::code_format(impl.options.v), impl.view().section<std::byte>(l.v_codes) + row * kTileRows * l.v_bits / 8,
                        factors, static_cast<int>(kTileRows), decoded.data());
    float const descale = impl.view().section<float>(l.v_descale)[channel_];
    std::int64_t const block = impl.options.v_block;
    std::int64_t const blocks = kTileRows / block;

    float lost = 0.0f;
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::int64_t const first = j * kTileRows + b * block;
      std::int64_t const count = std::clamp<std::int64_t>(static_cast<std::int64_t>(sorted_.size()) - first, 0, block);
      if (count == 0) continue;
      auto const value = [&](std::int64_t r) { return sorted_[static_cast<std::size_t>(first + r)]; };
      float const mean = fixed_order_sum<core::kRowPartials>(count, value) / static_cast<float>(count);
      auto const error = [&](std::int64_t r) {
        int const slot = formats::slot_of_key(static_cast<int>(b * block + r));
        return (value(r) - mean) - decoded[static_cast<std::size_t>(slot)] * descale;
      };
      float const mu0 = mean - g_;
      float const mu = mu0 + fixed_order_sum<core::kRowPartials>(count, error) / static_cast<float>(count);
      std::uint16_t const mu16 = impl.view().section<std::uint16_t>(l.v_mean)[(j * blocks + b) * l.head_dim_padded + channel_];
      EXPECT_EQ(mu16, core::fp16_encode(mu * (1.0f / descale))) << "block " << b << " of tile " << j << ", channel " << channel_;
      lost = std::fma(static_cast<float>(count), std::fma(-core::fp16_decode(mu16), descale, mu), lost);
    }
    return lost;
  }

  Prepared const& prepared_;
  std::vector<float> sorted_;
  float g_;
  int channel_;
};

TEST_P(GlobalMeanBits, AreThoseOfTheFormula) {
  auto const [recipe, block, keys] = GetParam();
  Sizes const sizes{1, 1, keys, 1, 1, 32};
  OwnedProblem owned = OwnedProblem::normal(sizes, 61);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t d = 0; d < 32; ++d) owned.v_row(0, j)[d] += 0.1f * static_cast<float>(d) + (j < keys / 2 ? 0.6f : -0.6f);
  }
  // Neighbours swap places, so that the order is not the caller's and block means stay large.
  std::vector<std::int32_t> permutation(static_cast<std::size_t>(keys));
  std::iota(permutation.begin(), permutation.end(), 0);
  for (std::size_t i = 1; i < permutation.size(); i += 2) std::swap(permutation[i - 1], permutation[i]);
  Problem problem = owned.problem();
  problem.permutation = permutation;
  Options options = recipe_options(recipe);
  options.v_block = block;
  Prepared const off = prepare(problem, with_emc(options, false));
  Prepared const on = prepare(problem, with_emc(options, true));

  // Compensation moves means only.
  auto const& l = on.impl().layout;
  for (formats::Section const& s : {l.v_codes, l.v_scale_factors, l.v_descale}) {
    EXPECT_EQ(0, std::memcmp(on.impl().slab + s.offset, off.impl().slab + s.offset, s.bytes));
  }
  for (int d = 0; d < 32; ++d) {
    std::vector<float> sorted;
    for (std::int32_t const row : permutation) sorted.push_back(owned.v_row(0, row)[d]);
    float const g = fixed_order_sum<core::kTilePartials>(formats::ceil_div(keys, kTileRows),
                                                         [&](std::int64_t j) {
                                                           return fixed_order_sum<core::kRowPartials>(
                                                               std::min(kTileRows, keys - j * kTileRows), [&](std::int64_t r) {
                                                                 return sorted[static_cast<std::size_t>(j * kTileRows + r)];
                                                               });
                                                         }) /
                    static_cast<float>(keys);
    EXPECT_EQ(g, global_mean(off)[static_cast<std::size_t>(d)]);
    EXPECT_EQ(WrittenDown(on, std::move(sorted), g, d).stored_global_mean(), global_mean(on)[static_cast<std::size_t>(d)]) << d;
  }
}

INSTANTIATE_TEST_SUITE_P(RecipesAndSizes, GlobalMeanBits,
                         testing::Combine(testing::Values(Recipe::vc8, Recipe::vc8s, Recipe::vsmooth4), testing::Values(32, 64, 128),
                                          testing::Values<std::int64_t>(1, 127, 129, 4421)));  // 4,421 keys: more than 32 tiles

TEST(GlobalMean, WithoutKeysIsZero) {
  OwnedProblem const owned = OwnedProblem::normal({1, 3, 0, 1, 1, 32});
  Prepared const prepared = prepare(owned.problem(), recipe_options(Recipe::vc8));
  for (float const x : global_mean(prepared)) EXPECT_EQ(x, 0.0f);
}

// In attention -----------------------------------------------------------------------------------------------------------------------

using FlatCase = std::tuple<Recipe, std::int64_t>;  // recipe, keys

class FlatAttention : public testing::TestWithParam<FlatCase> {
 protected:
  static constexpr std::int64_t kHeadDim = 64;

  /// Values around +0.6, then around -0.6: block means are large, the mean of the head is small.
  FlatAttention() {
    std::int64_t const keys = std::get<1>(GetParam());
    mean_.assign(static_cast<std::size_t>(kHeadDim), 0.0);
    for (std::int64_t j = 0; j < keys; ++j) {
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        float& x = owned_.v_row(0, j)[d];
        x += j < keys / 2 ? 0.6f : -0.6f;
        mean_[static_cast<std::size_t>(d)] += static_cast<double>(x) / static_cast<double>(keys);
      }
    }
    options_.order = GroupOrder::sequence;
  }

  /// Root mean square of O - mean, after `taken_back` [head_dim] has been subtracted from O.
  double rms_error(std::vector<double> const& o, std::vector<double> const& taken_back) const {
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) {
      std::size_t const d = i % static_cast<std::size_t>(kHeadDim);
      double const error = o[i] - taken_back[d] - mean_[d];
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(o.size()));
  }

  void expect_exact_with_compensation_only(Problem const& problem) const {
    std::vector<double> const nothing(static_cast<std::size_t>(kHeadDim), 0.0);
    Options const on = with_emc(options_, true);
    Options const off = with_emc(options_, false);
    auto const o = run(problem, on).o;
    double const compensated = rms_error(o, nothing);
    // What the block means alone leave.
    Prepared const prepared_on = prepare(problem, on);
    Prepared const prepared_off = prepare(problem, off);
    std::vector<double> added;
    for (std::size_t d = 0; d < static_cast<std::size_t>(kHeadDim); ++d) {
      added.push_back(static_cast<double>(global_mean(prepared_on)[d]) - static_cast<double>(global_mean(prepared_off)[d]));
    }
    double const blocks_only = rms_error(o, added);
    double const uncompensated = rms_error(run(problem, off).o, nothing);
    // Terms of up to 0.6 meet in FP32 sums whose result is near 0: a few units of 2^-24 of 0.6.
    EXPECT_LE(compensated, 4 * 0.6 * 0x1p-24);
    EXPECT_GE(blocks_only, 20 * compensated);
    EXPECT_GE(uncompensated, 5 * blocks_only);
  }

  OwnedProblem owned_ = OwnedProblem::normal({1, 3, std::get<1>(GetParam()), 1, 1, kHeadDim}, 62);
  Options options_ = recipe_options(std::get<0>(GetParam()));
  std::vector<double> mean_;  // FP64 [head_dim]
};

TEST_P(FlatAttention, OfZeroQueriesIsTheMean) {
  std::fill(owned_.q.begin(), owned_.q.end(), 0.0f);
  expect_exact_with_compensation_only(owned_.problem());
}

TEST_P(FlatAttention, OfScaleZeroIsTheMean) {
  Problem problem = owned_.problem();
  problem.softmax_scale = 0.0;
  expect_exact_with_compensation_only(problem);
}

INSTANTIATE_TEST_SUITE_P(RecipesAndSizes, FlatAttention,
                         testing::Combine(testing::Values(Recipe::vc8, Recipe::vsmooth4), testing::Values<std::int64_t>(1000, 8009)));

}  // namespace
}  // namespace vcattn
