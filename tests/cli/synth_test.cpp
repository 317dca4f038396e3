#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <vector>

#include "synth/random.hpp"
#include "synth/video_scene.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::cli {
namespace {

std::vector<float> values_of(SceneConfig const& config, std::int64_t head) {
  VideoScene const scene(config);
  std::int64_t const tokens = config.frames * config.rows * config.columns;
  auto const channels = static_cast<std::size_t>(config.head_dim);
  std::vector<float> values(static_cast<std::size_t>(tokens) * channels);
  for (std::int64_t token = 0; token < tokens; ++token) {
    scene.row(Operand::v, token, head, std::span(values).subspan(static_cast<std::size_t>(token) * channels, channels));
  }
  return values;
}

TEST(RandomNumbers, KnownWords) {
  // First two outputs of SplitMix64 from state 0, as published with it.
  EXPECT_EQ(mix_bits(0), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(mix_bits(0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
}

TEST(RandomNumbers, NormalHasUnitVariance) {
  RandomStream const random(1, 2);
  constexpr int kCount = 200000;
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    double const value = random.normal(i);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0, 0.01);
}

TEST(VideoScene, GroupingFindsWhatSequenceOrderDoesNot) {
  SceneConfig const config{9, 30, 52, 1, 128, 3, false};
  auto const values = values_of(config, 0);
  TensorView const v = nhd_view(values.data(), DType::f32, 1, config.frames * config.rows * config.columns, 1, config.head_dim);
  Options options = recipe_options(Recipe::vc8_paper);
  options.order = GroupOrder::label;
  options.clusters = 64;
  auto const state = group_values(v, options);
  double const before = value_energy_removed(v, {}, 128).front();
  double const after = value_energy_removed(v, state.permutation, 128).front();
  EXPECT_GT(before, 0.06);  // published for Wan2.2: 0.08 and 0.36
  EXPECT_LT(before, 0.11);
  EXPECT_GT(after, 0.30);
  EXPECT_LT(after, 0.42);
}

RC_GTEST_PROP(VideoScene, EveryRowIsFiniteAndAFunctionOfItsPosition, ()) {
  SceneConfig config{
      3, 4, 5, 2, 8 * *rc::gen::inRange<std::int64_t>(1, 20), *rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<bool>()};
  VideoScene const first(config), second(config);
  auto const token = *rc::gen::inRange<std::int64_t>(0, 60);
  auto const operand = static_cast<Operand>(*rc::gen::inRange<std::uint32_t>(0, 3));
  std::vector<float> a(static_cast<std::size_t>(config.head_dim)), b(a.size()), other_head(a.size());
  first.row(operand, token, 1, a);
  second.row(operand, token, 0, other_head);
  second.row(operand, token, 1, b);
  RC_ASSERT(a == b);
  RC_ASSERT(a != other_head);
  for (float const value : a) RC_ASSERT(std::isfinite(value) && std::abs(value) < 100.0f);
}

}  // namespace
}  // namespace vcattn::cli
