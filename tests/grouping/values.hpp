#pragma once

// Value tensors for the grouping tests: FP32 [batch, seqlen, heads, head_dim], deterministic by seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "vcattn/grouping.hpp"

namespace vcattn::test {

struct Shape {
  std::int64_t batch = 1, seqlen = 0, heads = 1, head_dim = 32;

  std::size_t size() const { return static_cast<std::size_t>(batch * seqlen * heads * head_dim); }
};

struct Values {
  Shape shape;
  std::vector<float> data;

  float& at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
    return data[static_cast<std::size_t>(((b * shape.seqlen + s) * shape.heads + h) * shape.head_dim + d)];
  }
  TensorView view() const { return nhd_view(data.data(), DType::f32, shape.batch, shape.seqlen, shape.heads, shape.head_dim); }
};

inline Values normal_values(Shape shape, unsigned seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  Values values{shape, std::vector<float>(shape.size())};
  for (float& x : values.data) x = normal(generator);
  return values;
}

/// Adds to every token the pattern of its class; class_of(row) is any non-negative integer.
inline void add_patterns(Values& values, unsigned seed, std::function<std::int64_t(std::int64_t)> const& class_of) {
  std::int64_t classes = 0;
  for (std::int64_t s = 0; s < values.shape.seqlen; ++s) classes = std::max(classes, class_of(s) + 1);
  Values pattern = normal_values({1, classes, values.shape.heads, values.shape.head_dim}, seed);
  Shape const shape = values.shape;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t s = 0; s < shape.seqlen; ++s) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) values.at(b, s, h, d) += pattern.at(0, class_of(s), h, d);
      }
    }
  }
}

/// A clip of frames of 16 x 16 tokens: 4 x 4 patches belong to one of 20 objects that move by a patch every second frame; noise on top.
inline Values video_values(std::int64_t frames, std::int64_t heads, unsigned seed, std::int64_t head_dim = 64) {
  Values values = normal_values({1, frames * 256, heads, head_dim}, seed, 0.8f);
  add_patterns(values, seed + 1, [](std::int64_t row) {
    std::int64_t const frame = row / 256;
    std::int64_t const y = row % 256 / 16 / 4;
    std::int64_t const x = (row % 16 / 4 + frame / 2) % 4;
    return (y * 7 + x * 11 + y * x * 5) % 20;
  });
  return values;
}

inline Options grouping_options(GroupOrder order, std::int32_t clusters = 0, std::int32_t num_threads = 0) {
  Options options;
  options.order = order;
  options.clusters = clusters;
  options.num_threads = num_threads;
  return options;
}

inline double mean_energy(TensorView const& v, std::span<std::int32_t const> permutation, std::int32_t block = 128) {
  std::vector<double> const removed = value_energy_removed(v, permutation, block);
  return std::accumulate(removed.begin(), removed.end(), 0.0) / static_cast<double>(removed.size());
}

/// Every head: a permutation of the valid rows in front, padding in its place behind them.
inline bool is_valid_permutation(GroupingState const& state) {
  for (std::int64_t head = 0; head < state.batch * state.num_heads_kv; ++head) {
    std::span const rows =
        std::span(state.permutation).subspan(static_cast<std::size_t>(head * state.seqlen_kv), static_cast<std::size_t>(state.seqlen_kv));
    auto const valid = static_cast<std::size_t>(state.seqused_k[static_cast<std::size_t>(head / state.num_heads_kv)]);
    std::set<std::int32_t> const front(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(valid));
    if (front.size() != valid) return false;
    if (valid > 0 && (*front.begin() != 0 || *front.rbegin() != static_cast<std::int32_t>(valid) - 1)) return false;
    for (std::size_t i = valid; i < rows.size(); ++i) {
      if (rows[i] != static_cast<std::int32_t>(i)) return false;
    }
  }
  return true;
}

/// Bit for bit, so that NaN equals itself.
inline void expect_same_state(GroupingState const& a, GroupingState const& b) {
  EXPECT_EQ(a.permutation, b.permutation);
  EXPECT_EQ(a.clusters, b.clusters);
  auto const bits = [](std::vector<float> const& x) {
    std::vector<std::uint32_t> out;
    for (float value : x) out.push_back(__builtin_bit_cast(std::uint32_t, value));
    return out;
  };
  EXPECT_EQ(bits(a.centroids), bits(b.centroids));
}

template <typename Call>
void expect_invalid_argument(Call const& call) {
  try {
    call();
    FAIL() << "no error was thrown";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  }
}

}  // namespace vcattn::test
