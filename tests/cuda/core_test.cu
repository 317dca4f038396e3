// core/ on a GPU: the same bits as on the host, and as the conversions and packed halves of the hardware.
// Exhaustive over all 2^32 floats where one float is the input. Exits with 1 on the first mismatch and with 2 without a GPU; prints a JSON
// record.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "core/e2m1.hpp"
#include "core/e4m3.hpp"
#include "core/expcast.hpp"
#include "core/fixed_order.hpp"
#include "core/hadamard.hpp"
#include "core/half.hpp"
#include "core/online_softmax.hpp"
#include "core/rope.hpp"
#include "device/launch.cuh"

namespace {

using namespace vcattn;

constexpr int kThreads = 256;
constexpr int kBlocks = 4096;

void check(cudaError_t status, char const* what) {
  if (status == cudaSuccess) return;
  std::cerr << "vcattn_gpu_core_test needs a CUDA device: " << what << ": " << cudaGetErrorString(status) << "\n";
  std::exit(2);
}

/// Number of inputs, the mismatches among them, and one input that differs.
struct Verdict {
  unsigned long long inputs = 0;
  unsigned long long mismatches = 0;
  unsigned long long example = 0;
};

enum class Outcome { equal, different, not_an_input };

__device__ Outcome outcome(bool equal) { return equal ? Outcome::equal : Outcome::different; }

/// Calls test(u) for every 32-bit pattern.
template <typename Test>
__global__ void all_patterns(Test test, Verdict* verdict) {
  unsigned long long const stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long inputs = 0;
  for (unsigned long long u = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x; u < (1ull << 32); u += stride) {
    Outcome const result = test(static_cast<std::uint32_t>(u));
    if (result == Outcome::not_an_input) continue;
    ++inputs;
    if (result == Outcome::equal) continue;
    atomicAdd(&verdict->mismatches, 1ull);
    verdict->example = u;
  }
  atomicAdd(&verdict->inputs, inputs);
}

struct E4m3MatchesCvt {
  __device__ Outcome operator()(std::uint32_t u) const {
    float const x = core::f32_from_bits(u);
    std::uint8_t const hardware = static_cast<std::uint8_t>(__nv_cvt_float2_to_fp8x2(float2{x, 0.0f}, __NV_SATFINITE, __NV_E4M3) & 0xFFu);
    std::uint8_t const ours = core::e4m3_encode(x);
    return outcome(core::is_nan(x) ? (hardware & 0x7F) == 0x7F && (ours & 0x7F) == 0x7F : hardware == ours);
  }
};
struct Fp16MatchesCvt {
  __device__ Outcome operator()(std::uint32_t u) const {
    float const x = core::f32_from_bits(u);
    std::uint16_t const hardware = __half_as_ushort(__float2half_rn(x));
    std::uint16_t const ours = core::fp16_encode(x);
    return outcome(core::is_nan(x) ? (hardware & 0x7FFF) > 0x7C00 && (ours & 0x7FFF) > 0x7C00 : hardware == ours);
  }
};
struct Bf16MatchesCvt {
  __device__ Outcome operator()(std::uint32_t u) const {
    float const x = core::f32_from_bits(u);
    std::uint16_t const hardware = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    std::uint16_t const ours = core::bf16_encode(x);
    return outcome(core::is_nan(x) ? (hardware & 0x7FFF) > 0x7F80 && (ours & 0x7FFF) > 0x7F80 : hardware == ours);
  }
};
struct Fp16DecodeMatchesCvt {
  __device__ Outcome operator()(std::uint32_t u) const {
    if (u > 0xFFFFu) return Outcome::not_an_input;
    auto const code = static_cast<std::uint16_t>(u);
    float const hardware = __half2float(__ushort_as_half(code));
    float const ours = core::fp16_decode(code);
    return outcome(core::is_nan(hardware) ? core::is_nan(ours) : core::f32_bits(hardware) == core::f32_bits(ours));
  }
};

/// [EQ-EXPCAST-TWOLINE] in packed halves, as a kernel with FP16 scores computes it. The pattern holds the FP16 score (low half) and n, T
/// (high half).
struct TwoLineMatchesPackedHalves {
  __device__ Outcome operator()(std::uint32_t u) const {
    __half const score = __ushort_as_half(static_cast<std::uint16_t>(u));
    float const s = __half2float(score);
    int const n = 1 + static_cast<int>((u >> 30) & 3u);
    int const row_constant = static_cast<int>((u >> 16) & 0x3FFFu) - 8192;
    if (!core::is_finite(s) || row_constant < -2048 || row_constant > 2048 ||
        s * static_cast<float>(n) + static_cast<float>(row_constant) > 126.0f) {
      return Outcome::not_an_input;
    }
    __half2 const step = __halves2half2(__ushort_as_half(static_cast<std::uint16_t>(n)), __ushort_as_half(static_cast<std::uint16_t>(n)));
    __half const constant = __float2half_rn(static_cast<float>(row_constant) * 0x1p-24f);
    __half2 const t = __hfma2(__halves2half2(score, score), step, __halves2half2(constant, constant));
    __half const slope = __float2half_rn(core::kTwoLineSlope);
    __half const offset = __float2half_rn(core::kTwoLineOffset * 0x1p-24f);
    __half2 const lower = __hfma2_relu(t, __halves2half2(slope, slope), __halves2half2(offset, offset));
    std::uint16_t const hardware = __half_as_ushort(__low2half(__hmax2(t, lower)));
    return outcome(hardware == core::expcast_two_line(s, static_cast<float>(n), static_cast<float>(row_constant)));
  }
};

template <typename Test>
Verdict run_all_patterns(Test test) {
  Verdict* result = nullptr;
  Verdict verdict;
  check(cudaMalloc(&result, sizeof verdict), "cudaMalloc");
  check(cudaMemset(result, 0, sizeof verdict), "cudaMemset");
  check(device::launch(all_patterns<Test>, kBlocks, kThreads, 0, nullptr, test, result), "launch");
  check(cudaMemcpy(&verdict, result, sizeof verdict, cudaMemcpyDeviceToHost), "kernel");
  cudaFree(result);
  return verdict;
}

/// What one random row gives, on either side.
struct RowResult {
  float hadamard[128];
  float rope[128];
  float dot;
  std::uint8_t codes[4][128];  // paper, offset126, two_line, affine
  std::uint8_t e2m1[128];
  float aligned_constant;
};

__host__ __device__ inline void compute_row(float const* row, float const* other, RowResult& r) {
  for (int d = 0; d < 128; ++d) r.hadamard[d] = r.rope[d] = row[d];
  core::hadamard_row(r.hadamard, 128);
  core::rope_row(r.rope + 16, other, other + 64, 96, other[0] > 0.0f);
  r.dot = core::lane_dot(row, other, 128);
  for (int d = 0; d < 128; ++d) {
    float const score = row[d] * 100.0f - 300.0f;
    r.codes[0][d] = core::expcast_paper(score, 1.25f, core::kPaperOffset);
    r.codes[1][d] = core::expcast_offset(score, 1.25f, 101.0f);
    r.codes[2][d] = core::expcast_two_line(score, 1.25f, 101.5f);
    r.codes[3][d] = core::expcast_affine(score, 1.25f, 101.25f);
    r.e2m1[d] = core::e2m1_encode(row[d] * 3.0f);
  }
  r.aligned_constant = core::aligned_integer_constant(126, row[0] * 100.0f);
}

__global__ void compute_rows(float const* rows, RowResult* results, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) compute_row(rows + i * 128, rows + (i + 1) % count * 128, results[i]);
}

Verdict host_and_device_rows(int count) {
  std::vector<float> rows(static_cast<std::size_t>(count) * 128);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& x : rows) x = normal(random);
  float* device_rows = nullptr;
  RowResult* device_results = nullptr;
  std::vector<RowResult> results(static_cast<std::size_t>(count));
  check(cudaMalloc(&device_rows, rows.size() * sizeof(float)), "cudaMalloc");
  check(cudaMalloc(&device_results, results.size() * sizeof(RowResult)), "cudaMalloc");
  check(cudaMemcpy(device_rows, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(device::launch(compute_rows, (count + kThreads - 1) / kThreads, kThreads, 0, nullptr, device_rows, device_results, count),
        "launch");
  check(cudaMemcpy(results.data(), device_results, results.size() * sizeof(RowResult), cudaMemcpyDeviceToHost), "kernel");
  cudaFree(device_rows);
  cudaFree(device_results);
  Verdict verdict;
  verdict.inputs = static_cast<unsigned long long>(count);
  for (int i = 0; i < count; ++i) {
    RowResult expected{};
    compute_row(rows.data() + i * 128, rows.data() + (i + 1) % count * 128, expected);
    RowResult const& got = results[static_cast<std::size_t>(i)];
    if (std::memcmp(&expected, &got, sizeof expected) != 0) {
      ++verdict.mismatches;
      verdict.example = static_cast<unsigned long long>(i);
    }
  }
  return verdict;
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  nlohmann::json record;
  record["device"] = properties.name;
  record["scope"] = "core on the device against the host and against hardware conversions; mismatches must be 0";
  bool failed = false;
  auto const add = [&](char const* name, Verdict const& verdict) {
    record["checks"].push_back({{"name", name}, {"inputs", verdict.inputs}, {"mismatches", verdict.mismatches}});
    if (verdict.mismatches != 0) {
      std::cerr << name << ": " << verdict.mismatches << " mismatches, for example input " << verdict.example << "\n";
      failed = true;
    }
  };
  add("e4m3_encode = cvt.rn.satfinite.e4m3x2.f32, every float", run_all_patterns(E4m3MatchesCvt{}));
  add("fp16_encode = cvt.rn.f16.f32, every float", run_all_patterns(Fp16MatchesCvt{}));
  add("bf16_encode = cvt.rn.bf16.f32, every float", run_all_patterns(Bf16MatchesCvt{}));
  add("fp16_decode = cvt.f32.f16, every code", run_all_patterns(Fp16DecodeMatchesCvt{}));
  add("expcast_two_line = packed FP16 fma, fma.relu, max; every FP16 score, n 1..4, T -2048..2048, t <= 126",
      run_all_patterns(TwoLineMatchesPackedHalves{}));
  constexpr int kRows = 1 << 16;
  add("hadamard, rope, lane_dot, ExpCast forms, e2m1, aligned constant: device = host, rows of 128", host_and_device_rows(kRows));
  std::cout << record.dump(2) << "\n";
  return failed ? 1 : 0;
}
