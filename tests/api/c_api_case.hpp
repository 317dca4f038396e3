#pragma once

// A small attention problem seen through both APIs.

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/vcattn.h"

namespace vcattn::test {

inline std::vector<float> normal_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

template <typename CTensor, typename View>
CTensor to_c(View const& view) {
  CTensor tensor{};
  tensor.data = view.data;
  tensor.dtype = static_cast<std::uint32_t>(view.dtype);
  std::memcpy(tensor.shape, view.shape.data(), sizeof(tensor.shape));
  std::memcpy(tensor.stride, view.stride.data(), sizeof(tensor.stride));
  return tensor;
}

template <typename Struct>
Struct zeroed() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

inline vcattn_options c_options(std::string_view recipe) {
  auto options = zeroed<vcattn_options>();
  if (vcattn_options_init(&options, std::string(recipe).c_str()) != VCATTN_OK) throw std::runtime_error(vcattn_last_error());
  return options;
}

/// Inputs, outputs and their C and C++ descriptions; NHD, FP32, two query heads per KV head.
class Case {
 public:
  static constexpr std::int64_t kHeads = 2, kHeadsKv = 1, kHeadDim = 64;

  explicit Case(std::int64_t batch = 1, std::int64_t seqlen_q = 70, std::int64_t seqlen_kv = 300)
      : batch_(batch),
        seqlen_q_(seqlen_q),
        seqlen_kv_(seqlen_kv),
        q_(normal_values(batch * seqlen_q * kHeads * kHeadDim, 1)),
        k_(normal_values(batch * seqlen_kv * kHeadsKv * kHeadDim, 2)),
        v_(normal_values(batch * seqlen_kv * kHeadsKv * kHeadDim, 3)),
        o(q_.size(), -1.0f),
        lse(static_cast<std::size_t>(batch * kHeads * seqlen_q), -1.0f) {}

  Problem problem() const {
    Problem p;
    p.q = nhd_view(q_.data(), DType::f32, batch_, seqlen_q_, kHeads, kHeadDim);
    p.k = nhd_view(k_.data(), DType::f32, batch_, seqlen_kv_, kHeadsKv, kHeadDim);
    p.v = nhd_view(v_.data(), DType::f32, batch_, seqlen_kv_, kHeadsKv, kHeadDim);
    return p;
  }

  vcattn_problem c_problem() const {
    Problem const p = problem();
    auto c = zeroed<vcattn_problem>();
    c.q = to_c<vcattn_tensor>(p.q);
    c.k = to_c<vcattn_tensor>(p.k);
    c.v = to_c<vcattn_tensor>(p.v);
    return c;
  }

  MutableTensorView output_view() {
    TensorView const like = problem().q;
    return {o.data(), like.dtype, like.shape, like.stride};
  }

  vcattn_output c_output() {
    auto c = zeroed<vcattn_output>();
    c.o = to_c<vcattn_mutable_tensor>(output_view());
    c.lse = lse.data();
    c.lse_count = static_cast<std::int64_t>(lse.size());
    return c;
  }

  std::int64_t keys() const { return batch_ * kHeadsKv * seqlen_kv_; }
  std::vector<float>& values() { return v_; }

 private:
  std::int64_t batch_, seqlen_q_, seqlen_kv_;
  std::vector<float> q_, k_, v_;

 public:
  std::vector<float> o, lse;
};

/// Equal as bytes: also where NaN is.
template <typename T>
bool same_bits(std::span<T const> a, std::span<T const> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <typename T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  return same_bits(std::span<T const>(a), std::span<T const>(b));
}

/// Memory at a 256-byte boundary, with some to spare.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::size_t size_bytes) : memory_(size_bytes + 512), size_bytes_(size_bytes) {}
  std::byte* data() {
    auto const address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (256 - address % 256) % 256;
  }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::vector<std::byte> memory_;
  std::size_t size_bytes_;
};

}  // namespace vcattn::test
