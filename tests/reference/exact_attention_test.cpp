// The oracle's oracle: exact attention against results that can be worked out by hand, and against itself on equivalent problems.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "problems.hpp"
#include "reference/attention.hpp"
#include "reference/codecs.hpp"

namespace vcattn {
namespace {

using namespace testing_support;
using reference::AttentionResult;
using reference::exact_attention;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One query row of q = e_0, keys with the given scores, values v_j = j + 1 in every channel.
OwnedProblem with_scores(std::vector<double> const& scores, std::int64_t seqlen_q = 1) {
  OwnedProblem owned({1, seqlen_q, static_cast<std::int64_t>(scores.size()), 1, 1, 32});
  for (std::int64_t i = 0; i < seqlen_q; ++i) owned.q_row(0, i)[0] = 1.0f;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    auto const row = static_cast<std::int64_t>(j);
    owned.k_row(0, row)[0] = static_cast<float>(scores[j]);
    std::fill_n(owned.v_row(0, row), 32, static_cast<float>(j + 1));
  }
  return owned;
}

TEST(ExactAttention, WeightsOneToThree) {
  OwnedProblem const owned = with_scores({0.0, 2.0});
  Problem problem = owned.problem();
  problem.softmax_scale = std::log(3.0) / 2.0;
  AttentionResult const result = exact_attention(problem);
  EXPECT_NEAR(result.o[0], (1 * 1 + 3 * 2) / 4.0, 1e-14);
  EXPECT_NEAR(result.o[31], (1 * 1 + 3 * 2) / 4.0, 1e-14);
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-14);
}

TEST(ExactAttention, DefaultScaleIsTheInverseRootOfTheHeadDim) {
  OwnedProblem const owned = with_scores({1.0});
  EXPECT_NEAR(exact_attention(owned.problem()).lse[0], 1.0 / std::sqrt(32.0), 1e-14);
}

TEST(ExactAttention, EqualScoresGiveTheMean) {
  OwnedProblem const owned = with_scores(std::vector<double>(5, -7.5));
  Problem problem = owned.problem();
  problem.softmax_scale = 1.0;
  AttentionResult const result = exact_attention(problem);
  EXPECT_NEAR(result.o[0], 3.0, 1e-14);
  EXPECT_NEAR(result.lse[0], std::log(5.0) - 7.5, 1e-13);
}

TEST(ExactAttention, HugeScoresDoNotOverflow) {
  OwnedProblem const owned = with_scores({-30000.0, 30000.0, 29999.0});
  Problem problem = owned.problem();
  problem.softmax_scale = 1.0;
  AttentionResult const result = exact_attention(problem);
  EXPECT_NEAR(result.o[0], (2 * std::numbers::e + 3) / (std::numbers::e + 1), 1e-12);
}

TEST(ExactAttention, CausalIsAlignedBottomRight) {
  for (auto const& [seqlen_q, visible] :
       std::vector<std::pair<std::int64_t, std::vector<int>>>{{2, {2, 3}}, {3, {1, 2, 3}}, {5, {0, 0, 1, 2, 3}}}) {
    OwnedProblem const owned = with_scores({0, 0, 0}, seqlen_q);
    Problem problem = owned.problem();
    problem.causal = true;
    AttentionResult const result = exact_attention(problem);
    for (std::size_t i = 0; i < visible.size(); ++i) {
      double const keys = visible[i];
      EXPECT_NEAR(result.o[i * 32], keys == 0 ? 0.0 : (keys + 1) / 2, 1e-14) << "row " << i;
      EXPECT_NEAR(std::exp(result.lse[i]), keys, 1e-13) << "row " << i;
    }
  }
}

TEST(ExactAttention, NoKeysGiveZeroAndMinusInfinity) {
  OwnedProblem const owned({2, 3, 0, 2, 1, 32});
  AttentionResult const result = exact_attention(owned.problem());
  for (double const x : result.o) EXPECT_EQ(x, 0.0);
  for (double const x : result.lse) EXPECT_EQ(x, -kInfinity);
}

TEST(ExactAttention, NoQueriesGiveNothing) {
  OwnedProblem const owned({2, 0, 3, 2, 1, 32});
  AttentionResult const result = exact_attention(owned.problem());
  EXPECT_TRUE(result.o.empty());
  EXPECT_TRUE(result.lse.empty());
}

TEST(ExactAttention, QueryHeadsShareTheirKvHead) {
  Sizes const sizes{2, 5, 7, 6, 2, 32};
  OwnedProblem const owned = OwnedProblem::normal(sizes);
  AttentionResult const grouped = exact_attention(owned.problem());
  Sizes wide = sizes;
  wide.num_heads_kv = 6;
  OwnedProblem repeated(wide);
  repeated.q = owned.q;
  for (std::int64_t row = 0; row < sizes.batch * sizes.seqlen_kv; ++row) {
    for (std::int64_t head = 0; head < 6; ++head) {
      std::copy_n(owned.k.begin() + (row * 2 + head / 3) * 32, 32, repeated.k.begin() + (row * 6 + head) * 32);
      std::copy_n(owned.v.begin() + (row * 2 + head / 3) * 32, 32, repeated.v.begin() + (row * 6 + head) * 32);
    }
  }
  AttentionResult const plain = exact_attention(repeated.problem());
  EXPECT_EQ(grouped.o, plain.o);
  EXPECT_EQ(grouped.lse, plain.lse);
}

TEST(ExactAttention, SequsedCutsTheKeysAndHidesPadding) {
  Sizes const sizes{2, 4, 6, 1, 1, 32};
  OwnedProblem owned = OwnedProblem::normal(sizes);
  std::vector<std::int32_t> const seqused = {4, 0};
  for (std::int64_t j = 4; j < 6; ++j) {
    owned.k_row(0, j)[0] = kNan;
    owned.v_row(0, j)[3] = 1e30f;
  }
  Problem problem = owned.problem();
  problem.seqused_k = seqused;
  AttentionResult const result = exact_attention(problem);

  Problem cut = problem;
  cut.seqused_k = {};
  for (TensorView* tensor : {&cut.q, &cut.k, &cut.v}) tensor->shape[0] = 1;
  cut.k.shape[1] = cut.v.shape[1] = 4;
  AttentionResult const first = exact_attention(cut);
  for (std::size_t i = 0; i < first.o.size(); ++i) EXPECT_EQ(result.o[i], first.o[i]);
  for (std::size_t i = first.lse.size(); i < result.lse.size(); ++i) EXPECT_EQ(result.lse[i], -kInfinity);
}

TEST(ExactAttention, VarlenEqualsOneSequenceAtATime) {
  std::vector<std::int32_t> const cu_q = {0, 3, 3, 10};
  std::vector<std::int32_t> const cu_k = {0, 5, 9, 9};
  OwnedProblem const owned = OwnedProblem::normal({1, 10, 9, 4, 2, 32});
  Problem problem = owned.problem();
  problem.cu_seqlens_q = cu_q;
  problem.cu_seqlens_k = cu_k;
  problem.causal = true;
  AttentionResult const packed = exact_attention(problem);
  ASSERT_EQ(packed.lse.size(), 4u * 10u);
  for (std::size_t b = 0; b + 1 < cu_q.size(); ++b) {
    Problem one = owned.problem();
    one.causal = true;
    auto const slice = [](TensorView& tensor, std::int64_t first, std::int64_t last) {
      tensor.data = static_cast<float const*>(tensor.data) + first * tensor.stride[1];
      tensor.shape[1] = last - first;
    };
    slice(one.q, cu_q[b], cu_q[b + 1]);
    slice(one.k, cu_k[b], cu_k[b + 1]);
    slice(one.v, cu_k[b], cu_k[b + 1]);
    AttentionResult const alone = exact_attention(one);
    auto const rows = static_cast<std::size_t>(cu_q[b + 1] - cu_q[b]);
    auto const first = static_cast<std::size_t>(cu_q[b]);
    for (std::size_t i = 0; i < alone.o.size(); ++i) EXPECT_EQ(packed.o[first * 4 * 32 + i], alone.o[i]);
    for (std::size_t h = 0; h < 4; ++h) {
      for (std::size_t i = 0; i < rows; ++i) EXPECT_EQ(packed.lse[h * 10 + first + i], alone.lse[h * rows + i]);
    }
  }
}

TEST(ExactAttention, StridesAndTypesDoNotMatter) {
  Sizes const sizes{2, 5, 6, 3, 3, 32};
  OwnedProblem owned = OwnedProblem::normal(sizes);
  owned.round_to_bf16();
  AttentionResult const contiguous = exact_attention(owned.problem());

  // K as bf16 [B, H, S, D]; V reversed along the sequence and read backwards.
  std::vector<std::uint16_t> k_bits(owned.k.size());
  std::vector<float> v_reversed(owned.v.size());
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t j = 0; j < 6; ++j) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t d = 0; d < 32; ++d) {
          auto const bits = static_cast<std::uint16_t>(reference::bf16().encode(static_cast<double>(owned.k_row(b, j, h)[d])));
          k_bits[static_cast<std::size_t>(((b * 3 + h) * 6 + j) * 32 + d)] = bits;
          v_reversed[static_cast<std::size_t>(((b * 6 + 5 - j) * 3 + h) * 32 + d)] = owned.v_row(b, j, h)[d];
        }
      }
    }
  }
  Problem problem = owned.problem();
  problem.k = hnd_view(k_bits.data(), DType::bf16, 2, 6, 3, 32);
  problem.v.data = v_reversed.data() + 5 * problem.v.stride[1];
  problem.v.stride[1] = -problem.v.stride[1];
  AttentionResult const strided = exact_attention(problem);
  EXPECT_EQ(strided.o, contiguous.o);
  EXPECT_EQ(strided.lse, contiguous.lse);
}

/// Attention over a part of the keys, with the log-sum-exp of the parts as weights, is attention over all.
TEST(ExactAttention, ShardsMergeThroughTheirLse) {
  OwnedProblem const owned = OwnedProblem::normal({1, 9, 50, 2, 1, 32});
  AttentionResult const whole = exact_attention(owned.problem());
  auto const shard = [&](std::int64_t first, std::int64_t count) {
    Problem problem = owned.problem();
    for (TensorView* tensor : {&problem.k, &problem.v}) {
      tensor->data = static_cast<float const*>(tensor->data) + first * tensor->stride[1];
      tensor->shape[1] = count;
    }
    return exact_attention(problem);
  };
  AttentionResult const a = shard(0, 17);
  AttentionResult const b = shard(17, 33);
  for (std::size_t i = 0; i < 9; ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      std::size_t const row = h * 9 + i;
      double const lse = std::log(std::exp(a.lse[row]) + std::exp(b.lse[row]));
      EXPECT_NEAR(lse, whole.lse[row], 1e-12);
      for (std::size_t d = 0; d < 32; ++d) {
        std::size_t const at = (i * 2 + h) * 32 + d;
        EXPECT_NEAR(std::exp(a.lse[row] - lse) * a.o[at] + std::exp(b.lse[row] - lse) * b.o[at], whole.o[at], 1e-12);
      }
    }
  }
}

TEST(ExactAttention, RopeTurnsPairsOfQAndK) {
  OwnedProblem owned({1, 2, 2, 1, 1, 32});
  owned.q_row(0, 1)[0] = 1.0f;  // position 1, first pair along x
  owned.k_row(0, 0)[1] = 1.0f;  // position 0, along y
  owned.k_row(0, 1)[0] = 1.0f;  // position 1, along x
  std::vector<float> cosines(2 * 16, 1.0f);
  std::vector<float> sines(2 * 16, 0.0f);
  cosines[16] = 0.0f;  // a quarter turn of the first pair at position 1
  sines[16] = 1.0f;
  Problem problem = owned.problem();
  problem.softmax_scale = 1.0;
  problem.rope = Rope{cosines.data(), sines.data(), 2, 32, 0, RopeStyle::interleaved};
  // Turned: q_1 = k_1 = y, k_0 = y. Both scores of row 1 are 1; without RoPE they were 0 and 1.
  EXPECT_NEAR(exact_attention(problem).lse[1], 1 + std::log(2.0), 1e-7);
  problem.rope.reset();
  EXPECT_NEAR(exact_attention(problem).lse[1], std::log(1 + std::numbers::e), 1e-12);
}

TEST(ExactAttention, ANonFiniteQueryRowStaysAlone) {
  OwnedProblem owned = OwnedProblem::normal({1, 3, 4, 2, 2, 32});
  AttentionResult const clean = exact_attention(owned.problem());
  owned.q_row(0, 1, 0)[5] = kNan;
  AttentionResult const result = exact_attention(owned.problem());
  for (std::size_t i = 0; i < clean.o.size(); ++i) {
    bool const hit = i / 32 == 2;  // row 1, head 0 of [3, 2, 32]
    EXPECT_TRUE(hit ? std::isnan(result.o[i]) : result.o[i] == clean.o[i]) << i;
  }
  for (std::size_t i = 0; i < clean.lse.size(); ++i) EXPECT_TRUE(i == 1 ? std::isnan(result.lse[i]) : result.lse[i] == clean.lse[i]);
}

TEST(ExactAttention, ANonFiniteKeyOrValueReachesItsHeadOnly) {
  for (bool const in_values : {false, true}) {
    OwnedProblem owned = OwnedProblem::normal({1, 3, 4, 2, 2, 32});
    AttentionResult const clean = exact_attention(owned.problem());
    (in_values ? owned.v_row(0, 2, 1) : owned.k_row(0, 2, 1))[7] = -std::numeric_limits<float>::infinity();
    AttentionResult const result = exact_attention(owned.problem());
    for (std::size_t i = 0; i < clean.o.size(); ++i) {
      bool const hit = i / 32 % 2 == 1;
      EXPECT_TRUE(hit ? std::isnan(result.o[i]) : result.o[i] == clean.o[i]) << i;
    }
  }
}

}  // namespace
}  // namespace vcattn
