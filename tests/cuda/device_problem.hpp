#pragma once

// Inputs and results of the complete call in device memory.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "cuda/attention_case.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cuda_test {

inline constexpr unsigned char kPoison = 0xFF;

/// FP32 Q, K and V of a problem in device memory, contiguous as on the host.
class DeviceInputs {
 public:
  explicit DeviceInputs(Problem const& problem) : problem_(problem), q_(upload(problem.q)), k_(upload(problem.k)), v_(upload(problem.v)) {
    problem_.q.data = q_.data();
    problem_.k.data = k_.data();
    problem_.v.data = v_.data();
  }

  Problem const& problem() const { return problem_; }
  void replace(Problem const& problem) {
    q_.upload(problem.q.data, q_.size());
    k_.upload(problem.k.data, k_.size());
    v_.upload(problem.v.data, v_.size());
  }
  /// Whether the device holds the bytes of that problem.
  bool holds(Problem const& problem) const { return same(q_, problem.q) && same(k_, problem.k) && same(v_, problem.v); }

 private:
  static std::size_t bytes_of(TensorView const& t) {
    return static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3] * dtype_bytes(t.dtype));
  }
  static CudaBuffer upload(TensorView const& t) {
    CudaBuffer buffer(bytes_of(t));
    buffer.upload(t.data, bytes_of(t));
    return buffer;
  }
  static bool same(CudaBuffer const& buffer, TensorView const& t) {
    std::vector<std::byte> bytes(buffer.size());
    buffer.download(bytes.data(), bytes.size());
    return std::memcmp(bytes.data(), t.data, bytes.size()) == 0;
  }

  Problem problem_;
  CudaBuffer q_, k_, v_;
};

inline std::size_t rows_of(Problem const& p) { return static_cast<std::size_t>(p.q.batch() * p.q.seqlen() * p.q.num_heads()); }

/// Device memory for the results of a problem.
struct Results {
  explicit Results(Problem const& p)
      : shape(p.q.shape), rows(rows_of(p)), o(rows * static_cast<std::size_t>(p.q.head_dim()) * sizeof(float)), lse(rows * sizeof(float)) {
    poison();
  }
  void poison() {
    o.fill(kPoison);
    lse.fill(kPoison);
  }
  MutableTensorView o_view() const {
    auto const view = nhd_view(nullptr, DType::f32, shape[0], shape[1], shape[2], shape[3]);
    return {o.data(), DType::f32, view.shape, view.stride};
  }
  std::span<float> lse_view() const { return {static_cast<float*>(lse.data()), rows}; }
  Output download(Stream stream = nullptr) const {
    Output output{std::vector<float>(o.size() / sizeof(float)), std::vector<float>(rows)};
    o.download(output.o.data(), o.size(), stream);
    lse.download(output.lse.data(), lse.size(), stream);
    return output;
  }
  std::array<std::int64_t, 4> shape;
  std::size_t rows;
  CudaBuffer o, lse;
};

inline Output attend_on_device(Problem const& problem, Options const& options, Call const& call = {Device::cuda, nullptr, {}}) {
  Results const results(problem);
  attend(problem, options, results.o_view(), results.lse_view(), call);
  return results.download(call.stream);
}

/// Device memory between guards, all of it filled with one byte.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t bytes, unsigned char filling) : bytes_(bytes), filling_(filling), memory_(bytes + 2 * kGuardBytes) {
    memory_.fill(filling);
  }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(memory_.data()) + kGuardBytes, bytes_}; }
  bool guards_hold() const {
    std::vector<unsigned char> host(memory_.size());
    memory_.download(host.data(), host.size());
    auto const is_filling = [&](unsigned char byte) { return byte == filling_; };
    return std::all_of(host.begin(), host.begin() + kGuardBytes, is_filling) &&
           std::all_of(host.end() - kGuardBytes, host.end(), is_filling);
  }

 private:
  static constexpr std::ptrdiff_t kGuardBytes = 1024;
  std::size_t bytes_;
  unsigned char filling_;
  CudaBuffer memory_;
};

}  // namespace vcattn::cuda_test
