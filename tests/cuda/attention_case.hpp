#pragma once

// Problems for the CUDA back end, what the references make of them, and what the device makes of them. No CUDA types.

#include <cstdint>
#include <string>
#include <vector>

#include "reference/problem_rows.hpp"
#include "reference/problems.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cuda_test {

using testing_support::OwnedProblem;
using testing_support::Sizes;

/// --seed, or a random one. Every case of a test gets a number of its own.
void set_base_seed(std::uint32_t seed);
std::uint32_t case_seed(std::uint32_t case_number);

/// Largest errors of the whole run, for the line at its end.
class Worst {
 public:
  static Worst& of(std::string const& what);
  void see(double error, std::string const& where);
  static void print();

 private:
  double error_ = 0;
  std::string where_;
};

/// A recipe with changes: "vc8", "vc8 top=112,scores=f32".
Options options_of(std::string const& text);

/// Everything that a Problem borrows.
struct Case {
  std::string recipe;  // as options_of() reads it
  Sizes sizes;
  bool causal = false;
  std::vector<std::int32_t> seqused_k = {}, cu_seqlens_q = {}, cu_seqlens_k = {};
  bool with_lse = true;

  std::string name() const;
  Problem problem(OwnedProblem const& owned) const;
};

/// What the tile-ordered reference, in the arithmetic of sm_90, makes of the bytes that the device gets.
struct Expected {
  std::vector<double> o, lse;
  bool codes_may_differ = false;  // probabilities are rounded from numbers that may differ in the last bit
};
Expected expected_result(Prepared const& prepared);

/// Bits that the device wrote: FP32 o, contiguous [B, Sq, H, D], and lse. Both were NaN before.
struct Output {
  std::vector<float> o, lse;

  std::vector<double> o_double() const { return {o.begin(), o.end()}; }
};
bool same_bits(std::vector<float> const& a, std::vector<float> const& b);
inline bool same_bits(Output const& a, Output const& b) { return same_bits(a.o, b.o) && same_bits(a.lse, b.lse); }

/// Shape of o for a prepared problem.
std::array<std::int64_t, 4> output_shape(Prepared const& prepared);
std::size_t lse_size(Prepared const& prepared);

/// Device memory of an Output.
class DeviceOutput {
 public:
  explicit DeviceOutput(Prepared const& prepared);

  MutableTensorView o() const;
  std::span<float> lse() const { return {static_cast<float*>(lse_.data()), lse_size_}; }
  void poison();
  Output download(Stream stream = nullptr) const;

 private:
  std::array<std::int64_t, 4> shape_;
  std::size_t lse_size_;
  CudaBuffer o_, lse_;
};

/// attention() of a problem in device memory.
Output run(Prepared const& on_device, bool with_lse = true);
/// to_cuda() and run().
Output run_on_device(Prepared const& prepared, bool with_lse = true);

/// Root mean square of a - b.
double rms_difference(std::vector<double> const& a, std::vector<double> const& b);

/// Fails where o is farther than 0.5 % or lse farther than 0.004 from the reference, or where NaN, infinity and rows without keys differ.
/// An empty lse is not looked at. Exponentials: a code that rounds the other way may move one row in 500 by more than that: lse by up to
/// 0.06, o by up to a quarter.
void expect_close(Output const& output, Expected const& expected, std::string const& where);

}  // namespace vcattn::cuda_test
