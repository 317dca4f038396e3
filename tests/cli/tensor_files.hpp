#pragma once

// Small q, k, v files for the tests of the program.

#include <cstdint>
#include <string>
#include <vector>

namespace vcattn::test {

using Shape = std::vector<std::int64_t>;

/// A tensor and its numbers, in memory order.
struct FloatTensor {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

/// Reproducible numbers of about unit variance.
FloatTensor random_tensor(std::string const& name, Shape const& shape, std::uint64_t seed);

/// q [1, 40, 2, 64] and k, v [1, 72, 2, 64] of random numbers.
std::vector<FloatTensor> small_problem();

/// F32 safetensors file.
void write_tensors(std::string const& path, std::vector<FloatTensor> const& tensors);

/// F32 or BF16 tensor of a safetensors file as numbers.
FloatTensor read_tensor(std::string const& path, std::string const& name);

/// Version 1 .npy file, '<f4'.
void write_npy(std::string const& path, FloatTensor const& tensor);

/// [B, S, H, D] <-> [B, H, S, D].
FloatTensor swapped_axes(FloatTensor const& tensor);

/// safetensors file with an int32 tensor `perm`.
void write_permutation(std::string const& path, Shape const& shape, std::vector<std::int32_t> const& values);

}  // namespace vcattn::test
