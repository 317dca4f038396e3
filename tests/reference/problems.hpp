#pragma once

// Small attention problems that own their tensors.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "reference/codecs.hpp"
#include "vcattn/attention.hpp"

namespace vcattn::testing_support {

struct Sizes {
  std::int64_t batch = 1, seqlen_q = 1, seqlen_kv = 1, num_heads = 1, num_heads_kv = 1, head_dim = 64;
};

/// Contiguous FP32 [B, S, H, D] tensors.
class OwnedProblem {
 public:
  explicit OwnedProblem(Sizes const& sizes)
      : sizes_(sizes),
        q(elements(sizes.seqlen_q, sizes.num_heads)),
        k(elements(sizes.seqlen_kv, sizes.num_heads_kv)),
        v(elements(sizes.seqlen_kv, sizes.num_heads_kv)) {}

  static OwnedProblem normal(Sizes const& sizes, unsigned seed = 1) {
    OwnedProblem problem(sizes);
    std::mt19937 random(seed);
    std::normal_distribution<float> distribution;
    for (auto* tensor : {&problem.q, &problem.k, &problem.v}) {
      for (float& x : *tensor) x = distribution(random);
    }
    return problem;
  }

  /// Values as a model in BF16 would hand them over.
  void round_to_bf16() {
    for (auto* tensor : {&q, &k, &v}) {
      for (float& x : *tensor) x = static_cast<float>(reference::bf16().round(static_cast<double>(x)));
    }
  }

  Sizes const& sizes() const { return sizes_; }

  Problem problem() const {
    Problem p;
    p.q = nhd_view(q.data(), DType::f32, sizes_.batch, sizes_.seqlen_q, sizes_.num_heads, sizes_.head_dim);
    p.k = nhd_view(k.data(), DType::f32, sizes_.batch, sizes_.seqlen_kv, sizes_.num_heads_kv, sizes_.head_dim);
    p.v = nhd_view(v.data(), DType::f32, sizes_.batch, sizes_.seqlen_kv, sizes_.num_heads_kv, sizes_.head_dim);
    return p;
  }

  /// First channel of a row.
  float* q_row(std::int64_t batch, std::int64_t row, std::int64_t head = 0) { return q.data() + q_offset(batch, row, head); }
  float* k_row(std::int64_t batch, std::int64_t row, std::int64_t head = 0) { return k.data() + kv_offset(batch, row, head); }
  float* v_row(std::int64_t batch, std::int64_t row, std::int64_t head = 0) { return v.data() + kv_offset(batch, row, head); }

 private:
  std::size_t elements(std::int64_t seqlen, std::int64_t heads) const {
    return static_cast<std::size_t>(sizes_.batch * seqlen * heads * sizes_.head_dim);
  }
  std::int64_t q_offset(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return ((batch * sizes_.seqlen_q + row) * sizes_.num_heads + head) * sizes_.head_dim;
  }
  std::int64_t kv_offset(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return ((batch * sizes_.seqlen_kv + row) * sizes_.num_heads_kv + head) * sizes_.head_dim;
  }

  Sizes sizes_;

 public:
  std::vector<float> q, k, v;
};

/// ||a - b|| / ||b||
inline double relative_l2(std::span<double const> a, std::span<double const> b) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
}

inline double max_abs_difference(std::span<double const> a, std::span<double const> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double const difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN stays
  }
  return largest;
}

/// A permutation of every head's keys, valid ones in front: int32 [B, Hkv, Sk].
inline std::vector<std::int32_t> random_permutation(Sizes const& sizes, std::int64_t valid, unsigned seed) {
  std::vector<std::int32_t> permutation;
  std::mt19937 random(seed);
  for (std::int64_t head = 0; head < sizes.batch * sizes.num_heads_kv; ++head) {
    auto const first = static_cast<std::ptrdiff_t>(permutation.size());
    for (std::int64_t i = 0; i < sizes.seqlen_kv; ++i) permutation.push_back(static_cast<std::int32_t>(i));
    std::shuffle(permutation.begin() + first, permutation.begin() + first + valid, random);
  }
  return permutation;
}

}  // namespace vcattn::testing_support
