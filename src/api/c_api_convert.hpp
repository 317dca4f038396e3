#pragma once

// From the structs of vcattn.h to those of the C++ API, with the checks that only a C caller needs: struct sizes, enumeration values, truth
// values, pointers with counts. What shapes and values mean is checked by the C++ API.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/grouping.hpp"
#include "vcattn/vcattn.h"

namespace vcattn::c_api {

[[noreturn]] inline void reject(std::string const& text) { throw Error(ErrorCode::invalid_argument, text); }

template <typename T>
T& require(T* pointer, char const* name) {
  if (pointer == nullptr) reject(std::string(name) + ": a non-null pointer is required, got NULL; pass the address of one");
  return *pointer;
}

/// Bytes up to the end of the last `required` member of vcattn.h.
template <typename Struct>
constexpr std::size_t kRequiredBytes = 0;
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_rope> = offsetof(vcattn_rope, first_channel);
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_problem> = offsetof(vcattn_problem, has_softmax_scale);
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_options> = offsetof(vcattn_options, check_finite);
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_call> = offsetof(vcattn_call, stream);
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_output> = offsetof(vcattn_output, lse);
template <>
inline constexpr std::size_t kRequiredBytes<vcattn_grouping> = offsetof(vcattn_grouping, seqused_k);

/// No struct of any version is longer: catches an uninitialised struct_size before memory behind it is read.
inline constexpr std::size_t kLongestStruct = 4096;

template <typename Struct>
std::size_t checked_struct_size(Struct const* in, char const* name) {
  static_assert(std::is_trivially_copyable_v<Struct> && kRequiredBytes<Struct> > 0 && sizeof(Struct) <= kLongestStruct);
  std::uint32_t size = 0;
  std::memcpy(&size, &require(in, name), sizeof(size));
  // Every sizeof is a multiple of the alignment, and a multiple never ends inside a pointer.
  if (size < kRequiredBytes<Struct> || size > kLongestStruct || size % alignof(Struct) != 0) {
    reject(std::string(name) + ".struct_size: a multiple of " + std::to_string(alignof(Struct)) + " from " +
           std::to_string(kRequiredBytes<Struct>) + " to " + std::to_string(kLongestStruct) + " required, got " + std::to_string(size) +
           "; zero the struct and set struct_size to its sizeof");
  }
  return size;
}

/// Copy of a versioned struct: completed with zeros where the caller's is shorter, refused where a longer one uses what this library does
/// not know.
template <typename Struct>
Struct read_struct(Struct const* in, char const* name) {
  std::size_t const size = checked_struct_size(in, name);
  auto const* bytes = reinterpret_cast<unsigned char const*>(in);
  if (std::any_of(bytes + std::min(size, sizeof(Struct)), bytes + size, [](unsigned char byte) { return byte != 0; })) {
    reject(std::string(name) + ".struct_size: members beyond byte " + std::to_string(sizeof(Struct)) +
           " must be zero for this version of the library, got values; leave them zero, or use a newer library");
  }
  Struct out{};
  std::memcpy(&out, bytes, std::min(size, sizeof(Struct)));
  return out;
}

/// The reverse: writes as many bytes as the caller's struct has, zeros where it is longer; its struct_size stays.
template <typename Struct>
void write_struct(Struct value, Struct* out, char const* name) {
  std::size_t const size = checked_struct_size(out, name);
  value.struct_size = static_cast<std::uint32_t>(size);
  auto* bytes = reinterpret_cast<unsigned char*>(out);
  std::memcpy(bytes, &value, std::min(size, sizeof(Struct)));
  std::fill(bytes + std::min(size, sizeof(Struct)), bytes + size, static_cast<unsigned char>(0));
}

template <typename Enum>
Enum to_enum(std::uint32_t value, Enum last, std::string const& name) {
  if (value > static_cast<std::uint32_t>(last)) {
    reject(name + ": 0.." + std::to_string(static_cast<std::uint32_t>(last)) + " required, got " + std::to_string(value) +
           "; use the enumerators of vcattn.h");
  }
  return static_cast<Enum>(value);
}

inline bool to_bool(std::uint32_t value, std::string const& name) {
  if (value > 1) reject(name + ": 0 or 1 required, got " + std::to_string(value) + "; was the struct zeroed?");
  return value == 1;
}

inline void require_zero(std::uint32_t value, std::string const& name) {
  if (value != 0) reject(name + ": 0 required, got " + std::to_string(value) + "; zero the whole struct first");
}

template <typename T>
std::span<T> to_span(T* data, std::int64_t count, std::string const& name) {
  if (count < 0 || (data == nullptr) != (count == 0)) {
    reject(name + ": a non-null pointer with a count > 0, or NULL with 0 required, got " + (data == nullptr ? "NULL" : "a pointer") +
           " with " + std::to_string(count) + "; pass both or neither");
  }
  return {data, static_cast<std::size_t>(count)};
}

inline std::span<std::byte> to_bytes(void* data, std::size_t size_bytes, char const* name) {
  if (size_bytes > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) {
    reject(std::string(name) + ": fewer than 2^63 bytes required, got " + std::to_string(size_bytes) + "; pass the size of the buffer");
  }
  return to_span(static_cast<std::byte*>(data), static_cast<std::int64_t>(size_bytes), name);
}

template <typename View, typename Tensor>
View to_view(Tensor const& tensor, std::string const& name) {
  require_zero(tensor.reserved, name + ".reserved");
  View view;
  view.data = tensor.data;
  view.dtype = to_enum(tensor.dtype, DType::bf16, name + ".dtype");
  std::copy_n(tensor.shape, 4, view.shape.begin());
  std::copy_n(tensor.stride, 4, view.stride.begin());
  return view;
}

inline Rope to_rope(vcattn_rope const* in) {
  vcattn_rope const rope = read_struct(in, "rope");
  return {rope.cos, rope.sin, rope.rows, rope.rotary_dim, rope.first_channel, to_enum(rope.style, RopeStyle::rotate_half, "rope.style")};
}

inline Problem to_problem(vcattn_problem const* in) {
  vcattn_problem const c = read_struct(in, "problem");
  require_zero(c.reserved, "problem.reserved");
  Problem problem;
  problem.q = to_view<TensorView>(c.q, "problem.q");
  problem.k = to_view<TensorView>(c.k, "problem.k");
  problem.v = to_view<TensorView>(c.v, "problem.v");
  problem.causal = to_bool(c.causal, "problem.causal");
  if (to_bool(c.has_softmax_scale, "problem.has_softmax_scale")) problem.softmax_scale = c.softmax_scale;
  problem.seqused_k = to_span(c.seqused_k, c.seqused_k_count, "problem.seqused_k");
  problem.cu_seqlens_q = to_span(c.cu_seqlens_q, c.cu_seqlens_q_count, "problem.cu_seqlens_q");
  problem.cu_seqlens_k = to_span(c.cu_seqlens_k, c.cu_seqlens_k_count, "problem.cu_seqlens_k");
  problem.permutation = to_span(c.permutation, c.permutation_count, "problem.permutation");
  if (c.rope != nullptr) problem.rope = to_rope(c.rope);
  return problem;
}

/// The one list of option members: visits (name, C member, C++ member[, last enumerator]).
template <typename COptions, typename CppOptions, typename Visit>
void visit_options(COptions& c, CppOptions& cpp, Visit visit) {
  // Named one by one, so that a member added to Options does not compile before it is added here and to vcattn_options.
  auto& [recipe, qk, qk_scaling, q_block, k_block, qk_rounding, k_mean, q_mean, hadamard, scores, v, v_per_channel, v_mean, v_block, emc,
         prob, exp_form, top_code, order, clusters, iterations, warm_iterations, check_finite, exact_f64, num_threads] = cpp;
  visit("recipe", c.recipe, recipe, Recipe::vsmooth4);
  visit("qk", c.qk, qk, QkFormat::nvfp4);
  visit("qk_scaling", c.qk_scaling, qk_scaling, QkScaling::unit);
  visit("q_block", c.q_block, q_block);
  visit("k_block", c.k_block, k_block);
  visit("qk_rounding", c.qk_rounding, qk_rounding, QkRounding::shaped);
  visit("k_mean", c.k_mean, k_mean);
  visit("q_mean", c.q_mean, q_mean);
  visit("hadamard", c.hadamard, hadamard);
  visit("scores", c.scores, scores, ScoreFormat::f32);
  visit("v", c.v, v, VFormat::nvfp4);
  visit("v_per_channel", c.v_per_channel, v_per_channel);
  visit("v_mean", c.v_mean, v_mean);
  visit("v_block", c.v_block, v_block);
  visit("emc", c.emc, emc);
  visit("prob", c.prob, prob, ProbFormat::nvfp4_two_level);
  visit("exp_form", c.exp_form, exp_form, ExpForm::affine);
  visit("top_code", c.top_code, top_code);
  visit("order", c.order, order, GroupOrder::chain_sorted);
  visit("clusters", c.clusters, clusters);
  visit("iterations", c.iterations, iterations);
  visit("warm_iterations", c.warm_iterations, warm_iterations);
  visit("check_finite", c.check_finite, check_finite);
  visit("exact_f64", c.exact_f64, exact_f64);
  visit("num_threads", c.num_threads, num_threads);
}

struct FromC {
  template <typename Enum>
  void operator()(char const* name, std::uint32_t c, Enum& cpp, Enum last) const {
    cpp = to_enum(c, last, std::string("options.") + name);
  }
  void operator()(char const* name, std::uint32_t c, bool& cpp) const { cpp = to_bool(c, std::string("options.") + name); }
  void operator()(char const*, std::int32_t c, std::int32_t& cpp) const { cpp = c; }
};

struct ToC {
  template <typename Enum>
  void operator()(char const*, std::uint32_t& c, Enum cpp, Enum) const {
    c = static_cast<std::uint32_t>(cpp);
  }
  void operator()(char const*, std::uint32_t& c, bool cpp) const { c = cpp ? 1 : 0; }
  void operator()(char const*, std::int32_t& c, std::int32_t cpp) const { c = cpp; }
};

inline Options to_options(vcattn_options const* in) {
  vcattn_options const c = read_struct(in, "options");
  Options options;
  visit_options(c, options, FromC{});
  return options;
}

inline void write_options(Options const& options, vcattn_options* out) {
  vcattn_options c{};
  visit_options(c, options, ToC{});
  write_struct(c, out, "options");
}

/// Bytes [begin, end) between the ends of a tensor or buffer; `dense`: all of them are its own.
struct Extent {
  char const* name = nullptr;
  std::uintptr_t begin = 0, end = 0;
  bool dense = true;
};

template <typename T>
Extent extent_of(std::span<T> buffer, char const* name) {
  auto const begin = reinterpret_cast<std::uintptr_t>(buffer.data());
  return {name, begin, begin + buffer.size_bytes()};
}

/// Modulo 2^64, so that nonsense strides are harmless; the C++ API refuses them.
template <typename View>
Extent extent_of(View const& tensor, char const* name) {
  auto const element_bytes = static_cast<std::uintptr_t>(dtype_bytes(tensor.dtype));
  auto const base = reinterpret_cast<std::uintptr_t>(tensor.data);
  Extent extent{name, base, base + element_bytes};
  std::uintptr_t own_bytes = element_bytes;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] <= 0) return {};
    std::uintptr_t const reach =
        static_cast<std::uintptr_t>(tensor.shape[i] - 1) * static_cast<std::uintptr_t>(tensor.stride[i]) * element_bytes;
    (tensor.stride[i] < 0 ? extent.begin : extent.end) += reach;
    own_bytes *= static_cast<std::uintptr_t>(tensor.shape[i]);
  }
  extent.dense = own_bytes == extent.end - extent.begin;
  return extent;
}

/// Refuses an output whose bytes are also those of `others`. Tensors with gaps are not judged: interleaved views may share an extent.
inline void require_disjoint(Extent const& output, std::vector<Extent> const& others) {
  for (Extent const& other : others) {
    if (output.dense && other.dense && output.begin < other.end && other.begin < output.end) {
      reject(std::string(output.name) + ": memory apart from " + other.name + " required, got overlapping buffers; pass distinct ones");
    }
  }
}

}  // namespace vcattn::c_api
