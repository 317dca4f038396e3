#pragma once

// The whole method: prepare (quantise) once, attend; or both in one call.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "vcattn/options.hpp"
#include "vcattn/types.hpp"

namespace vcattn {

enum class Device : std::uint32_t { cpu = 0, cuda = 1 };

/// A CUDA stream (the pointer that cudaStream_t is); nullptr: the default stream. Ignored on the CPU.
using Stream = void*;

/// Where a call runs. On the CPU `stream` and `workspace` are nothing, but for the workspace of attend().
struct Call {
  Device device = Device::cpu;          ///< cuda: tensors, rotary tables, permutation, storage, workspace are memory of the current device
  Stream stream = nullptr;              ///< the call enqueues here and returns
  std::span<std::byte> workspace = {};  ///< scratch, 256-byte aligned, of call_workspace_size_bytes(), to group grouping_sizes(); empty:
                                        ///< allocated inside
};

enum class RopeStyle : std::uint32_t {
  interleaved,  ///< pairs (2i, 2i+1)
  rotate_half,  ///< pairs (i, i + rotary_dim/2)
};

/// Rotary embedding applied to Q and K before anything else [EQ-ROPE]. Tables are FP32, contiguous [rows, rotary_dim / 2], row = position.
struct Rope {
  float const* cos = nullptr;
  float const* sin = nullptr;
  std::int64_t rows = 0;        ///< at least max(seqlen_q, seqlen_kv)
  std::int64_t rotary_dim = 0;  ///< even, <= head_dim - first_channel
  std::int64_t first_channel = 0;
  RopeStyle style = RopeStyle::interleaved;
};

/// One attention problem. Pointers are borrowed for the duration of the call; inputs are never modified.
///
/// Shapes: q [B, Sq, H, D]; k, v [B, Sk, Hkv, D]; H a multiple of Hkv; D a multiple of 8 in 32..256 (of 16 for NVFP4 choices).
/// Sq, Sk >= 0 and independent of each other; dtypes may differ between q, k and v.
struct Problem {
  TensorView q, k, v;

  /// Natural softmax scale; default 1/sqrt(D).
  std::optional<double> softmax_scale;

  /// Row i sees keys 0 .. i + Sk - Sq (bottom-right aligned, as FlashAttention). Key order must be `sequence`.
  bool causal = false;

  /// Valid keys per batch entry [B], 0..Sk; empty: all. Later rows are padding: their content never matters.
  std::span<std::int32_t const> seqused_k;

  /// Varlen: q [1, total_q, H, D], k, v [1, total_k, Hkv, D]; sequence b owns rows cu[b] .. cu[b+1]-1. Both or neither; [B + 1], ascending
  /// from 0.
  std::span<std::int32_t const> cu_seqlens_q, cu_seqlens_k;

  /// Key permutation, sorted[i] = original[perm[i]]: int32 [B, Hkv, Sk] (varlen: for each sequence [Hkv, Sk_b], concatenated).
  /// Valid keys must stay in front of padding. Empty: grouped as the options say.
  std::span<std::int32_t const> permutation;

  /// Optional rotary tables.
  std::optional<Rope> rope;
};

/// Answer of supports().
struct Support {
  bool ok = true;
  std::string reason;  ///< what was required, what was got, what to do; empty when ok
};

/// Whether `problem` can be served with `options` on `device`. Looks at shapes, dtypes, strides and small host arrays only, never at tensor
/// data; never throws.
VCATTN_API Support supports(Problem const& problem, Options const& options, Device device = Device::cpu) noexcept;

/// Bytes of a prepared problem: codes, descales, means, corrections, permutation (docs/formats.md). Errors: as supports().
VCATTN_API std::size_t prepared_size_bytes(Problem const& problem, Options const& options);

/// Bytes of scratch that attention() on `device` needs on top: O(S) on the CPU, up to 28 MB on the current CUDA device. Errors: as
/// supports().
VCATTN_API std::size_t workspace_size_bytes(Problem const& problem, Options const& options, Device device = Device::cpu);

/// Whether attend(), and so prepare() too, serves it with a Call on `device`; supports() asks for attention() alone. On a CUDA device
/// preparation needs check_finite=off, 8-bit or NVFP4 formats (Q means: NVFP4), head_dim 40 to 128; with these prepare() also serves what
/// attention() there does not (NVFP4, blocks of V of 32 and 64 rows). Never throws.
VCATTN_API Support supports_call(Problem const& problem, Options const& options, Device device) noexcept;

/// Bytes that Call::workspace needs for prepare() or attend(): on the CPU those of attend(), on a CUDA device the larger of the two, or
/// those of prepare() where attention() does not serve the problem. Errors: as prepare().
VCATTN_API std::size_t call_workspace_size_bytes(Problem const& problem, Options const& options, Device device);

/// Q, K and V after preparation, in the layout of docs/formats.md. Holds no pointer to the inputs, which may be freed.
/// Memory: owned by the object, or the caller's `storage` (which then must outlive it). Movable, not copyable.
class VCATTN_API Prepared {
 public:
  Prepared();
  ~Prepared();
  Prepared(Prepared&&) noexcept;
  Prepared& operator=(Prepared&&) noexcept;

  /// True before prepare() and after a move; every other member needs a prepared problem.
  bool empty() const { return impl_ == nullptr; }
  Options const& options() const;
  /// Where the codes are, and so where attention() runs.
  Device device() const;
  std::size_t size_bytes() const;
  /// int32 permutation as in Problem::permutation.
  std::span<std::int32_t const> permutation() const;
  /// Share of V's energy (about its per-head mean over valid keys, per channel) that the block means removed, mean over heads; NaN where
  /// the recipe has no means.
  double value_energy_removed() const;

  struct Impl;
  Impl const& impl() const { return *impl_; }
  explicit Prepared(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

/// Groups (unless a permutation is given), smooths and quantises. `storage` is empty (the result owns its memory) or at least
/// prepared_size_bytes() long and 256-byte aligned. Runs on the calling thread's behalf with options.num_threads threads and returns when
/// done. Deterministic: bitwise equal results for any number of threads. Errors: those of supports(), nonfinite with options.check_finite.
///
/// On a CUDA device (call.device) everything but seqused_k and cu_seqlens is device memory; the work is enqueued on call.stream. Codes,
/// descales and means are those of the CPU given the same permutation; grouping is from a cold start (GroupingSchedule has warm ones) and
/// has other roundings than the CPU's. A given permutation is not checked. With `storage` and after load_cuda_kernels() the call may be
/// captured into a graph. value_energy_removed() of the result is NaN. Errors: invalid_argument, unsupported with the reason,
/// out_of_memory.
VCATTN_API Prepared prepare(Problem const& problem, Options const& options, std::span<std::byte> storage = {}, Call const& call = {});

/// O = softmax(scale Q K^T) V of a prepared problem, on the device that holds it (to_cuda(), cuda.hpp).
///
/// o: [B, Sq, H, D] (varlen [1, total_q, H, D]), any dtype and strides, must not overlap the inputs.
/// lse: empty, or FP32 contiguous [B, H, Sq] (varlen [H, total_q]): natural log-sum-exp of the scaled scores, corrected for the subtracted
/// K mean and for the mean bias of the ExpCast form. Rows without a key give O = 0 and lse = -inf. workspace: empty (allocated inside) or
/// workspace_size_bytes() long and 256-byte aligned. Deterministic for any number of threads. Errors: invalid_argument on a shape mismatch,
/// out_of_memory.
///
/// On a CUDA device o, lse and workspace are device memory. The call enqueues on `stream` and returns: it waits for nothing and may be
/// captured into a graph. An empty workspace comes from a stream-ordered pool that the library keeps; captured, it becomes a memory node
/// of the graph, with CUDA's rules for such graphs (one executable at a time, no clones). Errors: also unsupported, with the reason of
/// supports().
VCATTN_API void attention(Prepared const& prepared, MutableTensorView const& o, std::span<float> lse = {},
                          std::span<std::byte> workspace = {}, Stream stream = nullptr);

/// prepare() and attention() in one call, with no memory left behind. On a CUDA device o and lse are device memory, too.
VCATTN_API void attend(Problem const& problem, Options const& options, MutableTensorView const& o, std::span<float> lse = {},
                       Call const& call = {});

}  // namespace vcattn
