#pragma once

// Inputs of the benchmarks: BF16, normally distributed, [1, S, H, D].

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "vcattn/attention.hpp"

namespace vcattn::bench {

struct Shape {
  std::int64_t seqlen = 0, num_heads = 0, head_dim = 0;

  std::int64_t elements() const { return seqlen * num_heads * head_dim; }
  /// Two products, a multiplication and an addition each.
  double attention_flops() const {
    return 4.0 * static_cast<double>(seqlen) * static_cast<double>(seqlen) * static_cast<double>(num_heads * head_dim);
  }
};

class Workload {
 public:
  explicit Workload(Shape shape)
      : shape_(shape), q_(tensor(1)), k_(tensor(2)), v_(tensor(3)), o_(static_cast<std::size_t>(shape.elements())) {}

  Shape const& shape() const { return shape_; }
  Problem problem() const {
    Problem p;
    p.q = view(q_.data(), DType::bf16);
    p.k = view(k_.data(), DType::bf16);
    p.v = view(v_.data(), DType::bf16);
    return p;
  }
  MutableTensorView output() {
    TensorView const o = view(o_.data(), DType::f32);
    return {o_.data(), o.dtype, o.shape, o.stride};
  }
  std::vector<float> const& output_values() const { return o_; }

 private:
  std::vector<std::uint16_t> tensor(std::uint32_t seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> values(static_cast<std::size_t>(shape_.elements()));
    for (std::uint16_t& value : values) value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(generator)) >> 16);
    return values;
  }
  TensorView view(void const* data, DType dtype) const {
    return nhd_view(data, dtype, 1, shape_.seqlen, shape_.num_heads, shape_.head_dim);
  }

  Shape shape_;
  std::vector<std::uint16_t> q_, k_, v_;
  std::vector<float> o_;
};

}  // namespace vcattn::bench
