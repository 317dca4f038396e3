#pragma once

// Whole kernels through the C++ API, on whatever device the program is linked with.

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/proof/vectors.hpp"

namespace vcattn::emulator::proof {

struct KernelCase {
  std::string recipe;
  std::int64_t batch, seqlen_q, seqlen_kv, num_heads, num_heads_kv, head_dim;
  bool causal = false;
  std::vector<std::int32_t> seqused_k = {};

  std::string name() const;
  bool has_exponentials() const { return recipe == "vsmooth8" || recipe == "vsmooth8s"; }
};
std::vector<KernelCase> kernel_cases();

/// Inputs by a fixed seed, prepared on the CPU.
struct KernelOutput {
  std::vector<std::uint8_t> prepared, o, lse;
};
KernelOutput run_on_device(KernelCase const& kernel_case);
/// Codes, descales and means as the device prepares them, of the same permutation.
std::vector<std::uint8_t> prepare_on_device(KernelCase const& kernel_case);

/// Every how many numbers of an output with exponentials one is stored.
inline constexpr std::size_t kSampleStride = 61;
std::vector<std::uint32_t> sample(std::vector<std::uint8_t> const& o);

}  // namespace vcattn::emulator::proof
