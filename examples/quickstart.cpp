// Low-bit attention on random tensors, and how far it is from exact attention.

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/options.hpp"

constexpr std::int64_t kBatch = 1, kSeqlen = 1024, kNumHeads = 2, kHeadDim = 128;

std::vector<float> random_tensor(std::mt19937& generator) {
  std::normal_distribution<float> normal;
  std::vector<float> values(kBatch * kSeqlen * kNumHeads * kHeadDim);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<float> attend(std::vector<float> const& q, std::vector<float> const& k, std::vector<float> const& v, vcattn::Recipe recipe) {
  auto const view = [](std::vector<float> const& x) {
    return vcattn::nhd_view(x.data(), vcattn::DType::f32, kBatch, kSeqlen, kNumHeads, kHeadDim);
  };
  vcattn::Problem problem;  // shapes [B, S, H, D], any strides, f32, f16 or bf16
  problem.q = view(q);
  problem.k = view(k);
  problem.v = view(v);

  std::vector<float> o(q.size());
  vcattn::Options const options = vcattn::recipe_options(recipe);
  vcattn::attend(problem, options, {o.data(), vcattn::DType::f32, problem.q.shape, problem.q.stride});
  return o;
}

int main() {
  std::mt19937 generator(1);
  std::vector<float> const q = random_tensor(generator), k = random_tensor(generator), v = random_tensor(generator);
  std::vector<float> const exact = attend(q, k, v, vcattn::Recipe::exact);
  std::vector<float> const low_bit = attend(q, k, v, vcattn::Recipe::vc8s);

  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(low_bit[i]) - static_cast<double>(exact[i]), 2);
    norm += std::pow(static_cast<double>(exact[i]), 2);
  }
  double const rel_l2 = std::sqrt(error / norm);
  std::printf("rel. L2 of vc8s against exact: %.2f %%\n", 100.0 * rel_l2);
  return rel_l2 < 0.045 ? 0 : 1;  // the bound that the tests hold INT8 recipes to on N(0, 1) inputs
}
