#pragma once

// Public vocabulary: element types, strided tensor views, errors. No torch, no CUDA types.

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(_WIN32)
#define VCATTN_API
#else
#define VCATTN_API __attribute__((visibility("default")))
#endif

namespace vcattn {

/// Element type of a caller's tensor.
enum class DType : std::uint32_t { f32 = 0, f16 = 1, bf16 = 2 };

/// Bytes of one element.
constexpr std::int64_t dtype_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

/// "f32", "f16" or "bf16".
constexpr char const* dtype_name(DType dtype) { return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16"; }

/// What went wrong, for callers that branch on it; the text says what was required, what was got, what to do.
enum class ErrorCode : std::uint32_t {
  ok = 0,
  invalid_argument = 1,  ///< a value or shape that no back end accepts
  unsupported = 2,       ///< valid, but not served by this build, device or recipe
  nonfinite = 3,         ///< NaN or infinity in an input, where the check was requested
  out_of_memory = 4,
  io = 5,
  internal = 6,
};

class VCATTN_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string const& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Read-only view of a 4-D tensor in the logical order [batch, seqlen, num_heads, head_dim].
///
/// Strides are in elements, int64, any value (0 and negative included), so NHD ([B, S, H, D] in memory), HND ([B, H, S, D]) and slices of a
/// fused QKV projection are all views. Dimensions of size 1 may carry any stride. The library never writes through a TensorView.
struct TensorView {
  void const* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  std::int64_t batch() const { return shape[0]; }
  std::int64_t seqlen() const { return shape[1]; }
  std::int64_t num_heads() const { return shape[2]; }
  std::int64_t head_dim() const { return shape[3]; }
};

/// Writable counterpart of TensorView. Elements must not overlap.
struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};
};

/// View of a contiguous [B, S, H, D] buffer (NHD).
inline TensorView nhd_view(void const* data, DType dtype, std::int64_t batch, std::int64_t seqlen, std::int64_t num_heads,
                           std::int64_t head_dim) {
  return {data, dtype, {batch, seqlen, num_heads, head_dim}, {seqlen * num_heads * head_dim, num_heads * head_dim, head_dim, 1}};
}

/// View of a contiguous [B, H, S, D] buffer (HND), in the logical order of TensorView.
inline TensorView hnd_view(void const* data, DType dtype, std::int64_t batch, std::int64_t seqlen, std::int64_t num_heads,
                           std::int64_t head_dim) {
  return {data, dtype, {batch, seqlen, num_heads, head_dim}, {num_heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1}};
}

}  // namespace vcattn
