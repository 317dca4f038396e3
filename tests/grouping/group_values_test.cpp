#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/half.hpp"
#include "grouping/state_fit.hpp"
#include "values.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::test {
namespace {

constexpr GroupOrder kClusterOrders[] = {GroupOrder::label, GroupOrder::chain, GroupOrder::chain_sorted};

TEST(DefaultClusters, Table) {
  EXPECT_EQ(default_clusters(0, GroupOrder::label), 8);
  EXPECT_EQ(default_clusters(8192, GroupOrder::label), 16);
  EXPECT_EQ(default_clusters(75600, GroupOrder::label), 64);
  EXPECT_EQ(default_clusters(0, GroupOrder::chain), 4);
  EXPECT_EQ(default_clusters(8192, GroupOrder::chain), 64);
  EXPECT_EQ(default_clusters(32760, GroupOrder::chain_sorted), 255);
  EXPECT_EQ(default_clusters(1000000, GroupOrder::chain_sorted), 512);
}

class OddSizes : public testing::TestWithParam<std::int64_t> {};

TEST_P(OddSizes, GiveValidPermutations) {
  for (GroupOrder const order : kClusterOrders) {
    for (std::int32_t const clusters : {0, 1, 64}) {
      Values const values = normal_values({2, GetParam(), 3, 40}, 1);
      GroupingState const state = group_values(values.view(), grouping_options(order, clusters));
      EXPECT_TRUE(is_valid_permutation(state)) << "order " << static_cast<int>(order) << ", clusters " << clusters;
      EXPECT_LE(state.clusters, GetParam());
      EXPECT_EQ(std::ssize(state.centroids), 2 * 3 * state.clusters * 40);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(GroupValues, OddSizes, testing::Values(0, 1, 2, 7, 127, 128, 129, 257, 1009, 1023));

TEST(GroupValues, DescribesItsInput) {
  Values const values = normal_values({2, 300, 3, 40}, 1);
  GroupingState const state = group_values(values.view(), grouping_options(GroupOrder::chain, 5), std::vector<std::int32_t>{300, 7});
  EXPECT_EQ(state.batch, 2);
  EXPECT_EQ(state.num_heads_kv, 3);
  EXPECT_EQ(state.seqlen_kv, 300);
  EXPECT_EQ(state.head_dim, 40);
  EXPECT_EQ(state.dtype, DType::f32);
  EXPECT_EQ(state.clusters, 5);
  EXPECT_EQ(state.seqused_k, (std::vector<std::int32_t>{300, 7}));
}

TEST(GroupValues, SequenceOrderIsTheIdentityWithoutCentroids) {
  Values const values = normal_values({1, 300, 2, 40}, 1);
  GroupingState const state = group_values(values.view(), grouping_options(GroupOrder::sequence));
  EXPECT_EQ(state.clusters, 0);
  EXPECT_TRUE(state.centroids.empty());
  for (std::size_t i = 0; i < 600; ++i) EXPECT_EQ(state.permutation[i], static_cast<std::int32_t>(i % 300));
}

TEST(GroupValues, AutomaticFollowsTheRecipe) {
  Values const values = video_values(4, 1, 3);
  Options options = grouping_options(GroupOrder::automatic);
  expect_same_state(group_values(values.view(), options), group_values(values.view(), grouping_options(GroupOrder::chain_sorted)));
  options.recipe = Recipe::vc8_paper;
  expect_same_state(group_values(values.view(), options), group_values(values.view(), grouping_options(GroupOrder::label)));
  options.v_mean = false;
  EXPECT_EQ(group_values(values.view(), options).clusters, 0);
}

TEST(GroupValues, BitwiseEqualForAnyNumberOfThreadsAndEveryRun) {
  Values const values = video_values(6, 3, 3);
  for (GroupOrder const order : kClusterOrders) {
    GroupingState const expected = group_values(values.view(), grouping_options(order, 0, 1));
    for (std::int32_t const threads : {1, 2, 3, 8, 0}) {
      expect_same_state(group_values(values.view(), grouping_options(order, 0, threads)), expected);
    }
  }
}

TEST(GroupValues, PaddingIsNotReadAndKeepsItsPlace) {
  std::vector<std::int32_t> const seqused{611};
  Values values = video_values(3, 2, 3);
  GroupingState const expected = group_values(values.view(), grouping_options(GroupOrder::chain_sorted), seqused);
  EXPECT_TRUE(is_valid_permutation(expected));
  for (float const padding : {0.0f, 1e4f, std::numeric_limits<float>::quiet_NaN()}) {
    std::fill(values.data.begin() + 611 * 2 * 64, values.data.end(), padding);
    expect_same_state(group_values(values.view(), grouping_options(GroupOrder::chain_sorted), seqused), expected);
  }
  TensorView shorter = values.view();
  shorter.shape[1] = 611;
  GroupingState const alone = group_values(shorter, grouping_options(GroupOrder::chain_sorted));
  EXPECT_EQ(alone.centroids, expected.centroids);
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t i = 0; i < 611; ++i) EXPECT_EQ(alone.permutation[head * 611 + i], expected.permutation[head * 768 + i]);
  }
}

TEST(GroupValues, EachBatchEntryIsGroupedAsIfAlone) {
  Values const values = normal_values({2, 700, 1, 32}, 4);
  std::vector<std::int32_t> const seqused{700, 390};
  GroupingState const both = group_values(values.view(), grouping_options(GroupOrder::chain_sorted), seqused);
  TensorView second = values.view();
  second.data = values.data.data() + 700 * 32;
  second.shape[0] = 1;
  GroupingState const alone = group_values(second, grouping_options(GroupOrder::chain_sorted), std::span(seqused).subspan(1));
  EXPECT_TRUE(std::equal(alone.permutation.begin(), alone.permutation.end(), both.permutation.begin() + 700));
}

TEST(GroupValues, StridedViewsEqualContiguousOnes) {
  Values values = video_values(2, 2, 5);
  std::int64_t const rows = 512, heads = 2, dim = 64;
  Options const options = grouping_options(GroupOrder::chain_sorted);
  GroupingState const expected = group_values(values.view(), options);

  std::vector<float> hnd(values.data.size());
  std::vector<float> fused(3 * values.data.size(), 1e30f);   // [rows, 3, heads, dim], V last
  std::vector<float> spread(2 * values.data.size(), 1e30f);  // every second channel, rows backwards
  for (std::int64_t s = 0; s < rows; ++s) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < dim; ++d) {
        float const x = values.at(0, s, h, d);
        hnd[static_cast<std::size_t>((h * rows + s) * dim + d)] = x;
        fused[static_cast<std::size_t>(((s * 3 + 2) * heads + h) * dim + d)] = x;
        spread[static_cast<std::size_t>(((rows - 1 - s) * heads + h) * dim * 2 + 2 * d)] = x;
      }
    }
  }
  expect_same_state(group_values(hnd_view(hnd.data(), DType::f32, 1, rows, heads, dim), options), expected);
  TensorView const in_fused{fused.data() + 2 * heads * dim, DType::f32, {1, rows, heads, dim}, {-1, 3 * heads * dim, dim, 1}};
  expect_same_state(group_values(in_fused, options), expected);
  TensorView const in_spread{
      spread.data() + (rows - 1) * heads * dim * 2, DType::f32, {1, rows, heads, dim}, {0, -heads * dim * 2, dim * 2, 2}};
  expect_same_state(group_values(in_spread, options), expected);
}

TEST(GroupValues, DtypesHoldingTheSameNumbersAgree) {
  Values values = video_values(2, 1, 5);
  for (float& x : values.data) x = core::fp16_round(core::bf16_round(x));
  std::vector<std::uint16_t> bf16, f16;
  for (float const x : values.data) {
    bf16.push_back(core::bf16_encode(x));
    f16.push_back(core::fp16_encode(x));
    ASSERT_EQ(core::bf16_decode(bf16.back()), core::fp16_decode(f16.back()));
  }
  Options const options = grouping_options(GroupOrder::chain_sorted);
  GroupingState const expected = group_values(values.view(), options);
  expect_same_state(group_values(nhd_view(bf16.data(), DType::bf16, 1, 512, 1, 64), options), expected);
  expect_same_state(group_values(nhd_view(f16.data(), DType::f16, 1, 512, 1, 64), options), expected);
}

TEST(GroupValues, PlantedClustersAreRecovered) {
  Values values = normal_values({1, 1024, 2, 64}, 6, 0.01f);
  add_patterns(values, 7, [](std::int64_t row) { return (row / 128 + row) % 8; });  // every strided start lies in another cluster
  EXPECT_LT(mean_energy(values.view(), {}), 0.1);
  for (GroupOrder const order : kClusterOrders) {
    GroupingState const state = group_values(values.view(), grouping_options(order, 8));
    EXPECT_GT(mean_energy(values.view(), state.permutation), 0.999) << "order " << static_cast<int>(order);
  }
}

TEST(GroupValues, CentroidsAreStoredInTheOrderOfTheChain) {
  Values values = normal_values({1, 1024, 1, 64}, 6, 0.01f);
  add_patterns(values, 7, [](std::int64_t row) { return (row / 128 + row) % 8; });
  Options const options = grouping_options(GroupOrder::chain, 8);
  GroupingState const cold = group_values(values.view(), options);
  for (GroupingState const& state : {cold, group_values(values.view(), options, {}, &cold)}) {
    for (std::size_t cluster = 0; cluster < 8; ++cluster) {
      for (std::size_t d = 0; d < 64; ++d) {
        float mean = 0.0f;
        for (std::size_t i = 128 * cluster; i < 128 * (cluster + 1); ++i)
          mean += values.at(0, state.permutation[i], 0, static_cast<std::int64_t>(d)) / 128.0f;
        ASSERT_NEAR(state.centroids[cluster * 64 + d], mean, 1e-4f) << "cluster " << cluster;
      }
    }
  }
}

TEST(GroupValues, AWarmStartKeepsTheDirectionOfTheChain) {
  Values const values = video_values(8, 1, 9);
  Options const options = grouping_options(GroupOrder::chain, 16);
  GroupingState state = group_values(values.view(), options);
  std::vector<float> turned;
  for (std::size_t cluster = 16; cluster-- > 0;)
    turned.insert(turned.end(), state.centroids.begin() + static_cast<std::ptrdiff_t>(cluster * 64),
                  state.centroids.begin() + static_cast<std::ptrdiff_t>((cluster + 1) * 64));
  float const first_channel = state.centroids[0];
  state.centroids = turned;
  GroupingState const warm = group_values(values.view(), options, {}, &state);
  EXPECT_NEAR(warm.centroids[15 * 64], first_channel, 0.1f);
}

TEST(GroupValues, EachOrderBeatsTheOneBefore) {
  Values const values = video_values(16, 2, 8);
  double previous = mean_energy(values.view(), {});
  for (GroupOrder const order : kClusterOrders) {
    double const removed = mean_energy(values.view(), group_values(values.view(), grouping_options(order, 32)).permutation);
    EXPECT_GT(removed, previous) << "order " << static_cast<int>(order);
    previous = removed;
  }
}

TEST(GroupValues, SmallerBlocksRemoveMore) {
  Values const values = video_values(8, 1, 8);
  Options options = grouping_options(GroupOrder::chain_sorted);
  double previous = 0.0;
  for (std::int32_t const block : {128, 64, 32}) {
    options.v_block = block;
    double const removed = mean_energy(values.view(), group_values(values.view(), options).permutation, block);
    EXPECT_GT(removed, previous);
    previous = removed;
  }
}

TEST(GroupValues, TheOrderIsMadeForBlocksOfTheChosenSize) {
  Values const values = video_values(8, 1, 8);
  Options options = grouping_options(GroupOrder::chain_sorted);
  std::vector<std::int32_t> const for_128 = group_values(values.view(), options).permutation;
  options.v_block = 32;
  std::vector<std::int32_t> const for_32 = group_values(values.view(), options).permutation;
  EXPECT_GT(mean_energy(values.view(), for_32, 32), mean_energy(values.view(), for_128, 32));
}

TEST(GroupValues, ALargeMeanOfVCostsNothing) {
  Values values = video_values(8, 1, 8);
  Options const options = grouping_options(GroupOrder::chain_sorted);
  double const expected = mean_energy(values.view(), group_values(values.view(), options).permutation);
  for (float& x : values.data) x += 3000.0f;
  EXPECT_NEAR(mean_energy(values.view(), group_values(values.view(), options).permutation), expected, 0.01);
}

TEST(GroupValues, OneWarmIterationEqualsAColdStart) {
  Options const options = grouping_options(GroupOrder::chain_sorted);
  Values values = video_values(8, 2, 9);
  GroupingState const earlier = group_values(values.view(), options);
  Values const drift = normal_values(values.shape, 10, 0.2f);
  for (std::size_t i = 0; i < drift.data.size(); ++i) values.data[i] += drift.data[i];
  double const cold = mean_energy(values.view(), group_values(values.view(), options).permutation);
  GroupingState const warm = group_values(values.view(), options, {}, &earlier);
  EXPECT_NEAR(mean_energy(values.view(), warm.permutation), cold, 0.01);
  EXPECT_NE(warm.centroids, earlier.centroids);
}

TEST(GroupValues, WarmAndColdStartsCountTheirOwnIterations) {
  Values const values = video_values(4, 1, 9);
  Options options = grouping_options(GroupOrder::label, 16);
  options.iterations = 1;
  GroupingState const cold = group_values(values.view(), options);
  GroupingState const warm = group_values(values.view(), options, {}, &cold);
  options.warm_iterations = 2;
  expect_same_state(group_values(values.view(), options), cold);
  EXPECT_NE(group_values(values.view(), options, {}, &cold).centroids, warm.centroids);
  options.iterations = 2;
  options.warm_iterations = 1;
  expect_same_state(group_values(values.view(), options, {}, &cold), warm);
  EXPECT_NE(group_values(values.view(), options).centroids, cold.centroids);
}

TEST(GroupValues, WarmStartBeginsFromTheCentroidsOfTheState) {
  Values const values = video_values(2, 1, 9);
  Options options = grouping_options(GroupOrder::label, 2);
  GroupingState state = group_values(values.view(), options);
  std::fill(state.centroids.begin(), state.centroids.begin() + 64, 1e3f);  // out of reach: stays empty, and where it is
  std::fill(state.centroids.begin() + 64, state.centroids.end(), 0.0f);
  GroupingState const warm = group_values(values.view(), options, {}, &state);
  for (std::size_t d = 0; d < 64; ++d) {
    float mean = 0.0f;
    for (std::size_t row = 0; row < 512; ++row) mean += values.data[row * 64 + d] / 512.0f;
    EXPECT_EQ(warm.centroids[d], 1e3f);
    EXPECT_NEAR(warm.centroids[64 + d], mean, 1e-3f);
  }
  EXPECT_TRUE(std::is_sorted(warm.permutation.begin(), warm.permutation.end()));
}

TEST(GroupValues, IdenticalTokensStayInSequenceOrder) {
  Values const values{{1, 500, 1, 32}, std::vector<float>(500 * 32, -0.37f)};
  for (GroupOrder const order : kClusterOrders) {
    GroupingState const state = group_values(values.view(), grouping_options(order, 8));
    EXPECT_TRUE(std::is_sorted(state.permutation.begin(), state.permutation.end()));
    for (float const c : state.centroids) EXPECT_FLOAT_EQ(c, -0.37f);
  }
}

TEST(GroupValues, NonFiniteAndHugeValuesStillGiveAPermutation) {
  constexpr float kSpecials[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f, -3e38f};
  for (GroupOrder const order : kClusterOrders) {
    for (float const special : kSpecials) {
      Values values = normal_values({1, 700, 1, 32}, 12);
      for (std::size_t i = 0; i < values.data.size(); i += 97) values.data[i] = special;
      EXPECT_TRUE(is_valid_permutation(group_values(values.view(), grouping_options(order, 16))));
      std::fill(values.data.begin(), values.data.end(), special);
      EXPECT_TRUE(is_valid_permutation(group_values(values.view(), grouping_options(order, 16))));
    }
  }
}

TEST(GroupValues, RefusesAWarmStateThatDoesNotFit) {
  Values const values = normal_values({2, 300, 3, 40}, 1);
  TensorView const v = values.view();
  Options const options = grouping_options(GroupOrder::chain, 5);
  GroupingState const good = group_values(v, options);
  EXPECT_NO_THROW(group_values(v, options, {}, &good));

  auto const refuse = [&](auto const& change) {
    GroupingState bad = good;
    change(bad);
    expect_invalid_argument([&] { group_values(v, options, {}, &bad); });
  };
  refuse([](GroupingState& s) { s.batch = 1; });
  refuse([](GroupingState& s) { s.num_heads_kv = 2; });
  refuse([](GroupingState& s) { s.seqlen_kv = 299; });
  refuse([](GroupingState& s) { s.head_dim = 48; });
  refuse([](GroupingState& s) { s.dtype = DType::bf16; });
  refuse([](GroupingState& s) { s.clusters = 6; });
  refuse([](GroupingState& s) { s.centroids.pop_back(); });
  refuse([](GroupingState& s) { s.permutation.pop_back(); });
  refuse([](GroupingState& s) { s.seqused_k = {300, 299}; });
  refuse([](GroupingState& s) { s = {}; });
  expect_invalid_argument([&] { group_values(v, grouping_options(GroupOrder::chain, 6), {}, &good); });
  expect_invalid_argument([&] { group_values(v, options, std::vector<std::int32_t>{300, 299}, &good); });
}

TEST(GroupValues, RefusesAWarmStateOfAnotherDevice) {
  Values const values = normal_values({1, 300, 1, 40}, 1);
  Options const options = grouping_options(GroupOrder::chain, 5);
  GroupingState state = group_values(values.view(), options);
  std::vector<std::int32_t> const valid_rows{300};
  EXPECT_EQ(grouping::misfit(state, values.view(), valid_rows), "");
  EXPECT_NE(grouping::misfit(state, values.view(), valid_rows, {Device::cuda, 1}).find("device cuda 1, got a state with cpu"),
            std::string::npos);
  state.device = Device::cuda;
  EXPECT_NE(grouping::misfit(state, values.view(), valid_rows, {Device::cuda, 0}).find("device memory"), std::string::npos);
  state.device_memory = std::make_shared<int>();  // whatever it is, it is not looked at
  EXPECT_EQ(grouping::misfit(state, values.view(), valid_rows, {Device::cuda, 0}), "");
  EXPECT_NE(grouping::misfit(state, values.view(), valid_rows, {Device::cuda, 1}).find("device cuda 1"), std::string::npos);
  expect_invalid_argument([&] { group_values(values.view(), options, {}, &state); });
}

TEST(GroupValues, RefusesBadInput) {
  Values const values = normal_values({2, 30, 3, 40}, 1);
  TensorView const v = values.view();
  Options const good = grouping_options(GroupOrder::chain);
  auto const refuse_view = [&](auto const& change) {
    TensorView bad = v;
    change(bad);
    expect_invalid_argument([&] { group_values(bad, good); });
  };
  refuse_view([](TensorView& t) { t.data = nullptr; });
  refuse_view([](TensorView& t) { t.dtype = static_cast<DType>(9); });
  refuse_view([](TensorView& t) { t.shape[0] = -1; });
  refuse_view([](TensorView& t) { t.shape[1] = -1; });
  refuse_view([](TensorView& t) { t.shape[1] = std::int64_t{1} << 31; });
  refuse_view([](TensorView& t) { t.shape[2] = 0; });
  refuse_view([](TensorView& t) { t.shape[3] = 0; });
  auto const refuse_options = [&](auto const& change) {
    Options bad = good;
    change(bad);
    expect_invalid_argument([&] { group_values(v, bad); });
  };
  refuse_options([](Options& o) { o.clusters = -1; });
  refuse_options([](Options& o) { o.clusters = 1 << 20; });
  refuse_options([](Options& o) { o.iterations = 0; });
  refuse_options([](Options& o) { o.warm_iterations = 0; });
  refuse_options([](Options& o) { o.v_block = 0; });
  refuse_options([](Options& o) { o.num_threads = -1; });
  expect_invalid_argument([&] { group_values(v, good, std::vector<std::int32_t>{30}); });
  expect_invalid_argument([&] { group_values(v, good, std::vector<std::int32_t>{30, 31}); });
  expect_invalid_argument([&] { group_values(v, good, std::vector<std::int32_t>{-1, 30}); });
}

}  // namespace
}  // namespace vcattn::test
