#pragma once

// Q, K, V, permutations and single tensors from files.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "vcattn/attention.hpp"

namespace vcattn::cli {

/// A 4-D tensor in memory: [B, S, H, D] with Layout::nhd, [B, H, S, D] with Layout::hnd.
struct HostTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;

  TensorView view(Layout layout) const;
};

/// Owns what its Problem borrows.
class LoadedProblem {
 public:
  /// Errors: ErrorCode::io for files, invalid_argument for contradictory options and for shapes that the options do not fit.
  explicit LoadedProblem(InputArguments const& arguments);

  Problem problem() const;
  Layout layout() const { return layout_; }
  /// File name for records and titles.
  std::string const& name() const { return name_; }

 private:
  Layout layout_;
  std::string name_;
  HostTensor q_, k_, v_;
  bool causal_;
  std::vector<std::int32_t> seqused_k_;
  std::vector<std::int32_t> permutation_;
};

/// One 4-D floating-point tensor of a safetensors file. Errors: ErrorCode::io.
HostTensor load_safetensors_tensor(std::filesystem::path const& path, std::string_view name);

/// A .npy array brought to 4-D: [S, D] is one head, [S, H, D] one batch entry ([H, S, D] with Layout::hnd). Errors: ErrorCode::io.
HostTensor load_npy_tensor(std::filesystem::path const& path, Layout layout);

/// int32 [B, Hkv, Sk], for values of the shape of `v`, valid keys in front (seqused: of each batch entry; empty: all). Errors:
/// ErrorCode::io, invalid_argument where it is no permutation or does not fit.
std::vector<std::int32_t> load_permutation(std::filesystem::path const& path, TensorView const& v, std::span<std::int32_t const> seqused);

/// Valid keys of each batch entry; empty text: none given. Errors: invalid_argument.
std::vector<std::int32_t> parse_seqused(std::string_view text, TensorView const& v);

/// Throws ErrorCode::nonfinite naming the first NaN or infinity of the valid rows, in the order [batch, seqlen, head, channel].
/// seqused: valid rows of each batch entry; empty: all.
void require_finite(std::string_view name, TensorView const& tensor, std::span<std::int32_t const> seqused = {});

/// require_finite() of what a problem reads of q, k and v.
void require_finite_problem(Problem const& problem);

/// Throws what run_support() answers for a problem that cannot be served.
void require_support(Problem const& problem, Options const& options, Devices devices);

/// Safetensors word of an element type.
std::string safetensors_dtype(DType dtype);

}  // namespace vcattn::cli
