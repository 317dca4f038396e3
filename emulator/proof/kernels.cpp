#include "emulator/proof/kernels.hpp"

#include <cstring>
#include <memory>
#include <utility>

#include "emulator/proof/operands.hpp"
#include "formats/prepared_layout.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::emulator::proof {

namespace {

/// Nearly normal numbers, exact in FP32 on every machine: a sum of twelve uniform ones.
std::vector<float> normal(std::int64_t count, Numbers& numbers) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    std::int32_t sum = -6 * 65536;
    for (int i = 0; i < 12; ++i) sum += static_cast<std::int32_t>(numbers.word() >> 16);
    value = static_cast<float>(sum) / 65536.0f;
  }
  return values;
}

/// [B, Hkv, Sk], valid keys first: a permutation that no rule of grouping has a part in.
std::vector<std::int32_t> shuffled_keys(KernelCase const& c, Numbers& numbers) {
  std::vector<std::int32_t> permutation;
  for (std::int64_t head = 0; head < c.batch * c.num_heads_kv; ++head) {
    auto const begin = static_cast<std::int64_t>(permutation.size());
    for (std::int32_t key = 0; key < c.seqlen_kv; ++key) permutation.push_back(key);
    std::int64_t const keys = c.seqused_k.empty() ? c.seqlen_kv : c.seqused_k[static_cast<std::size_t>(head / c.num_heads_kv)];
    for (std::int64_t i = keys - 1; i > 0; --i) {
      std::swap(permutation[static_cast<std::size_t>(begin + i)], permutation[static_cast<std::size_t>(begin + numbers.word() % (i + 1))]);
    }
  }
  return permutation;
}

struct Inputs {
  explicit Inputs(KernelCase const& c) {
    Numbers numbers(static_cast<std::uint64_t>(c.seqlen_q * 1'000'003 + c.seqlen_kv * 1009 + c.head_dim));
    q = normal(c.batch * c.seqlen_q * c.num_heads * c.head_dim, numbers);
    k = normal(c.batch * c.seqlen_kv * c.num_heads_kv * c.head_dim, numbers);
    v = normal(c.batch * c.seqlen_kv * c.num_heads_kv * c.head_dim, numbers);
    if (!c.causal) permutation = shuffled_keys(c, numbers);
  }
  std::vector<float> q, k, v;
  std::vector<std::int32_t> permutation;
};

Problem problem_of(KernelCase const& c, void const* q, void const* k, void const* v) {
  Problem problem;
  problem.q = nhd_view(q, DType::f32, c.batch, c.seqlen_q, c.num_heads, c.head_dim);
  problem.k = nhd_view(k, DType::f32, c.batch, c.seqlen_kv, c.num_heads_kv, c.head_dim);
  problem.v = nhd_view(v, DType::f32, c.batch, c.seqlen_kv, c.num_heads_kv, c.head_dim);
  problem.causal = c.causal;
  problem.seqused_k = c.seqused_k;
  return problem;
}

Options options_of(KernelCase const& c) { return recipe_options(parse_recipe(c.recipe)); }

/// Memory for a prepared problem, zeros between its sections.
struct Storage {
  explicit Storage(std::size_t bytes) : memory(bytes + formats::kSectionAlignment) {
    std::size_t const past = reinterpret_cast<std::uintptr_t>(memory.data()) % formats::kSectionAlignment;
    span = std::span(memory).subspan((formats::kSectionAlignment - past) % formats::kSectionAlignment, bytes);
  }
  std::vector<std::byte> memory;
  std::span<std::byte> span;
};

std::vector<std::uint8_t> bytes_of(void const* data, std::size_t count) {
  auto const* const first = static_cast<std::uint8_t const*>(data);
  return {first, first + count};
}

}  // namespace

std::string KernelCase::name() const {
  std::string text = recipe;
  for (auto const& [letter, size] :
       {std::pair{" B", batch}, {" Sq", seqlen_q}, {" Sk", seqlen_kv}, {" H", num_heads}, {"/", num_heads_kv}, {" D", head_dim}}) {
    text += letter + std::to_string(size);
  }
  if (causal) text += " causal";
  for (std::int32_t const keys : seqused_k) text += " " + std::to_string(keys);
  return text;
}

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  for (char const* const recipe : {"vc8", "vc8s", "vsmooth8"}) {
    std::vector<KernelCase> const shapes = {{recipe, 1, 1, 1, 1, 1, 64},
                                            {recipe, 1, 2, 63, 4, 1, 40},
                                            {recipe, 1, 63, 2, 2, 2, 72},
                                            {recipe, 2, 64, 64, 2, 1, 96},
                                            {recipe, 1, 65, 127, 4, 2, 128},
                                            {recipe, 2, 127, 65, 1, 1, 64},
                                            {recipe, 1, 128, 128, 2, 1, 128},
                                            {recipe, 1, 129, 191, 2, 1, 40},
                                            {recipe, 2, 191, 129, 2, 2, 72},
                                            {recipe, 1, 192, 193, 2, 1, 96},
                                            {recipe, 1, 193, 192, 2, 1, 128},
                                            {recipe, 1, 255, 257, 2, 1, 64},
                                            {recipe, 1, 257, 255, 1, 1, 128},
                                            {recipe, 1, 383, 385, 1, 1, 40},
                                            {recipe, 1, 509, 509, 1, 1, 128},
                                            {recipe, 1, 509, 64, 2, 1, 64},
                                            {recipe, 1, 63, 1023, 2, 2, 96},
                                            {recipe, 1, 127, 1025, 1, 1, 128},
                                            {recipe, 1, 65, 2200, 1, 1, 128},
                                            {recipe, 1, 1, 4097, 1, 1, 128},
                                            {recipe, 1, 2, 4700, 2, 1, 64},
                                            {recipe, 2, 127, 127, 2, 1, 72, true},
                                            {recipe, 1, 257, 65, 1, 1, 64, true},
                                            {recipe, 1, 63, 385, 2, 2, 128, true},
                                            {recipe, 3, 65, 257, 2, 1, 64, false, {0, 129, 257}}};
    cases.insert(cases.end(), shapes.begin(), shapes.end());
  }
  return cases;
}

KernelOutput run_on_device(KernelCase const& c) {
  Inputs const inputs(c);
  Problem problem = problem_of(c, inputs.q.data(), inputs.k.data(), inputs.v.data());
  problem.permutation = inputs.permutation;
  Options const options = options_of(c);
  Storage storage(prepared_size_bytes(problem, options));
  Prepared const on_device = to_cuda(prepare(problem, options, storage.span));
  CudaBuffer const o(inputs.q.size() * sizeof(float)), lse(inputs.q.size() / static_cast<std::size_t>(c.head_dim) * sizeof(float));
  TensorView const view = nhd_view(nullptr, DType::f32, c.batch, c.seqlen_q, c.num_heads, c.head_dim);
  attention(on_device, {o.data(), DType::f32, view.shape, view.stride}, {static_cast<float*>(lse.data()), lse.size() / sizeof(float)});
  KernelOutput output{bytes_of(storage.span.data(), storage.span.size()), std::vector<std::uint8_t>(o.size()),
                      std::vector<std::uint8_t>(lse.size())};
  o.download(output.o.data(), o.size());
  lse.download(output.lse.data(), lse.size());
  return output;
}

std::vector<std::uint8_t> prepare_on_device(KernelCase const& c) {
  Inputs const inputs(c);
  Options const options = options_of(c);
  auto const upload = [](void const* data, std::size_t bytes) {
    CudaBuffer buffer(std::max<std::size_t>(bytes, 1));
    buffer.upload(data, bytes);
    return buffer;
  };
  CudaBuffer const q = upload(inputs.q.data(), inputs.q.size() * sizeof(float)),
                   k = upload(inputs.k.data(), inputs.k.size() * sizeof(float)),
                   v = upload(inputs.v.data(), inputs.v.size() * sizeof(float)),
                   permutation = upload(inputs.permutation.data(), inputs.permutation.size() * sizeof(std::int32_t));
  Problem problem = problem_of(c, q.data(), k.data(), v.data());
  problem.permutation = {static_cast<std::int32_t const*>(permutation.data()), inputs.permutation.size()};
  CudaBuffer storage(prepared_size_bytes(problem, options));
  storage.fill(0);
  Call call;
  call.device = Device::cuda;
  Prepared const prepared = prepare(problem, options, {static_cast<std::byte*>(storage.data()), storage.size()}, call);
  std::vector<std::uint8_t> bytes(storage.size());
  storage.download(bytes.data(), bytes.size());
  return bytes;
}

std::vector<std::uint32_t> sample(std::vector<std::uint8_t> const& o) {
  std::vector<std::uint32_t> words;
  for (std::size_t at = 0; at + 4 <= o.size(); at += 4 * kSampleStride) std::memcpy(&words.emplace_back(), o.data() + at, 4);
  return words;
}

}  // namespace vcattn::emulator::proof
