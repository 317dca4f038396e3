#ifndef VCATTN_VCATTN_H
#define VCATTN_VCATTN_H

// C ABI of vcattn: the C++ API of attention.hpp, cuda.hpp, options.hpp and grouping.hpp for callers without C++ (C99, ctypes, Rust, ...).
//
// Status: every function that can fail returns a vcattn_status. On failure vcattn_last_error() has the text (what was required, what was
//   got, what to do); outputs are then unspecified, except handles, which are NULL. No exception leaves the library.
// Structs: plain data. A struct that begins with struct_size is versioned: zero it, then set struct_size to its sizeof. A longer one (of a
//   newer header) is accepted as long as the bytes that this library does not know are zero; a shorter one (of an older header) is
//   completed with zeros, and zero in an added member always means "as before". It must end at a member boundary and hold at least the
//   members marked `required`. Members named reserved must be zero. Structs without struct_size never change.
// Numbers: enumerations travel as uint32_t, truth values as uint32_t 0 or 1, strides and counts as int64_t in elements, sizes in bytes.
// Arrays: a pointer and its count go together: NULL with 0 (absent), or non-NULL with a count > 0.
// Memory: everything passed in is borrowed for the duration of the call, unless the function says otherwise. Inputs are never modified.
//   Outputs must not overlap inputs or each other; that is checked between buffers and tensors without gaps.
// Devices: a vcattn_call says where a call runs; NULL is the CPU. On a CUDA device, the current one of the calling thread (cudaSetDevice),
//   tensors and large arrays are device memory, which this library never reads or writes from the host; seqused_k and cu_seqlens stay host
//   memory. vcattn_prepared_to_cuda() copies what was prepared on the CPU there. What a device holds must be used with it current.
// Streams: on the CPU every call is synchronous. On a CUDA device a call enqueues on vcattn_call::stream and returns.
// Threads: functions may be called from any thread at any time, also on one vcattn_prepared; a vcattn_schedule serves one thread at a time.
// Determinism: bitwise equal from run to run, for any number of threads, and to the C++ API.

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define VCATTN_C_API
#else
#define VCATTN_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Raised when an existing function or member changes its meaning; additions leave it alone.
#define VCATTN_ABI_VERSION 1u

typedef uint32_t vcattn_status;
enum {
  VCATTN_OK = 0,
  VCATTN_INVALID_ARGUMENT = 1,  ///< a value or shape that no back end accepts
  VCATTN_UNSUPPORTED = 2,       ///< valid, but not served by this build, device or recipe
  VCATTN_NONFINITE = 3,         ///< NaN or infinity in an input, where the check was requested
  VCATTN_OUT_OF_MEMORY = 4,
  VCATTN_IO = 5,
  VCATTN_INTERNAL = 6
};

/// Element types.
enum { VCATTN_F32 = 0, VCATTN_F16 = 1, VCATTN_BF16 = 2 };

/// Devices.
enum { VCATTN_CPU = 0, VCATTN_CUDA = 1 };

/// vcattn_rope::style: pairs (2i, 2i+1), or (i, i + rotary_dim/2).
enum { VCATTN_ROPE_INTERLEAVED = 0, VCATTN_ROPE_ROTATE_HALF = 1 };

/// vcattn_options::recipe. A label, except that it says what VCATTN_ORDER_AUTOMATIC means.
enum {
  VCATTN_RECIPE_EXACT = 0,
  VCATTN_RECIPE_BF16 = 1,
  VCATTN_RECIPE_FP8 = 2,
  VCATTN_RECIPE_SAGE2 = 3,
  VCATTN_RECIPE_VSMOOTH8 = 4,
  VCATTN_RECIPE_VC8_PAPER = 5,
  VCATTN_RECIPE_VC8 = 6,
  VCATTN_RECIPE_VSMOOTH8S = 7,
  VCATTN_RECIPE_VC8S = 8,
  VCATTN_RECIPE_NVFP4 = 9,
  VCATTN_RECIPE_SAGE3 = 10,
  VCATTN_RECIPE_VSMOOTH4 = 11
};

/// Members of vcattn_options; options.hpp says what each value means.
enum { VCATTN_QK_F32 = 0, VCATTN_QK_BF16 = 1, VCATTN_QK_E4M3 = 2, VCATTN_QK_INT8 = 3, VCATTN_QK_NVFP4 = 4 };
enum { VCATTN_QK_SCALING_HEAD = 0, VCATTN_QK_SCALING_BLOCK = 1, VCATTN_QK_SCALING_UNIT = 2 };
enum { VCATTN_QK_ROUNDING_NEAREST = 0, VCATTN_QK_ROUNDING_SHAPED_K = 1, VCATTN_QK_ROUNDING_SHAPED = 2 };
enum { VCATTN_V_F32 = 0, VCATTN_V_BF16 = 1, VCATTN_V_E4M3 = 2, VCATTN_V_NVFP4 = 3 };
enum { VCATTN_PROB_F32 = 0, VCATTN_PROB_BF16 = 1, VCATTN_PROB_E4M3 = 2, VCATTN_PROB_NVFP4 = 3, VCATTN_PROB_NVFP4_TWO_LEVEL = 4 };
enum { VCATTN_EXP_EXP = 0, VCATTN_EXP_PAPER = 1, VCATTN_EXP_OFFSET126 = 2, VCATTN_EXP_TWO_LINE = 3, VCATTN_EXP_AFFINE = 4 };
enum { VCATTN_SCORES_AUTOMATIC = 0, VCATTN_SCORES_F16 = 1, VCATTN_SCORES_F32 = 2 };
enum {
  VCATTN_ORDER_AUTOMATIC = 0,
  VCATTN_ORDER_SEQUENCE = 1,
  VCATTN_ORDER_LABEL = 2,
  VCATTN_ORDER_CHAIN = 3,
  VCATTN_ORDER_CHAIN_SORTED = 4
};

/// Grouping schedule: policies, and what they decide for a step.
enum { VCATTN_SCHEDULE_NEVER = 0, VCATTN_SCHEDULE_FIRST_QUARTER = 1, VCATTN_SCHEDULE_EVERY_STEP = 2 };
enum { VCATTN_ACTION_SEQUENCE_ORDER = 0, VCATTN_ACTION_REGROUP_COLD = 1, VCATTN_ACTION_REGROUP_WARM = 2, VCATTN_ACTION_REUSE = 3 };

/// 4-D tensor in the logical order [batch, seqlen, num_heads, head_dim]; strides in elements, any value. Dimensions of size 1 may carry any
/// stride.
typedef struct vcattn_tensor {
  void const* data;
  uint32_t dtype;  ///< VCATTN_F32, VCATTN_F16 or VCATTN_BF16
  uint32_t reserved;
  int64_t shape[4];
  int64_t stride[4];
} vcattn_tensor;

/// Writable counterpart; its elements must not overlap.
typedef struct vcattn_mutable_tensor {
  void* data;
  uint32_t dtype;
  uint32_t reserved;
  int64_t shape[4];
  int64_t stride[4];
} vcattn_mutable_tensor;

/// Rotary embedding applied to Q and K before anything else. Tables: FP32, contiguous [rows, rotary_dim / 2], row = position.
typedef struct vcattn_rope {
  uint32_t struct_size;  ///< required
  uint32_t style;        ///< required: VCATTN_ROPE_*
  float const* cos;      ///< required
  float const* sin;      ///< required
  int64_t rows;          ///< required: at least max(seqlen_q, seqlen_kv)
  int64_t rotary_dim;    ///< required: even, <= head_dim - first_channel
  int64_t first_channel;
} vcattn_rope;

/// One attention problem. q [B, Sq, H, D]; k, v [B, Sk, Hkv, D]; H a multiple of Hkv; D a multiple of 8 in 32..256 (of 16 for NVFP4
/// choices); Sq, Sk >= 0; the dtypes of q, k and v are independent.
typedef struct vcattn_problem {
  uint32_t struct_size;        ///< required
  uint32_t causal;             ///< required: 1: row i sees keys 0 .. i + Sk - Sq; key order must be `sequence`
  vcattn_tensor q;             ///< required
  vcattn_tensor k;             ///< required
  vcattn_tensor v;             ///< required
  uint32_t has_softmax_scale;  ///< 1: softmax_scale is used; 0: 1/sqrt(D)
  uint32_t reserved;
  double softmax_scale;
  int32_t const* seqused_k;  ///< [B] valid keys, 0..Sk; later rows are padding whose content never matters
  int64_t seqused_k_count;
  // Varlen: [sequences + 1], ascending from 0; both or neither. q is then [1, total_q, H, D], k and v are [1, total_k, Hkv, D].
  int32_t const* cu_seqlens_q;
  int64_t cu_seqlens_q_count;
  int32_t const* cu_seqlens_k;
  int64_t cu_seqlens_k_count;
  // Key permutation, sorted[i] = original[perm[i]]: [B, Hkv, Sk] (varlen: per sequence [Hkv, Sk_b], concatenated). NULL: as the options
  // say.
  int32_t const* permutation;
  int64_t permutation_count;
  vcattn_rope const* rope;  ///< NULL: none
} vcattn_problem;

/// Mirror of vcattn::Options. Fill with vcattn_options_init(), then change members or use vcattn_options_set().
typedef struct vcattn_options {
  uint32_t struct_size;    ///< required, as every member up to warm_iterations
  uint32_t recipe;         ///< VCATTN_RECIPE_*
  uint32_t qk;             ///< VCATTN_QK_*
  uint32_t qk_scaling;     ///< VCATTN_QK_SCALING_*
  int32_t q_block;         ///< rows: 32, 64 or 128
  int32_t k_block;         ///< rows: 32, 64 or 128
  uint32_t qk_rounding;    ///< VCATTN_QK_ROUNDING_*
  uint32_t k_mean;         ///< 0 or 1
  uint32_t q_mean;         ///< 0 or 1
  uint32_t hadamard;       ///< 0 or 1
  uint32_t scores;         ///< VCATTN_SCORES_*
  uint32_t v;              ///< VCATTN_V_*
  uint32_t v_per_channel;  ///< 0 or 1
  uint32_t v_mean;         ///< 0 or 1
  int32_t v_block;         ///< rows: 32, 64 or 128
  uint32_t emc;            ///< 0 or 1
  uint32_t prob;           ///< VCATTN_PROB_*
  uint32_t exp_form;       ///< VCATTN_EXP_*
  int32_t top_code;        ///< 8..126
  uint32_t order;          ///< VCATTN_ORDER_*
  int32_t clusters;        ///< 0: chosen from the number of keys
  int32_t iterations;
  int32_t warm_iterations;
  uint32_t check_finite;  ///< 1: look for NaN and infinity first, fail with VCATTN_NONFINITE
  uint32_t exact_f64;     ///< 1: `exact` computes in double
  int32_t num_threads;    ///< 0: all cores
} vcattn_options;

/// Where a call runs. NULL wherever it is asked for means the CPU.
typedef struct vcattn_call {
  uint32_t struct_size;    ///< required
  uint32_t device;         ///< required: VCATTN_CPU or VCATTN_CUDA; then tensors, rotary tables, permutation, storage are device memory
  void* stream;            ///< the pointer that cudaStream_t is, NULL: the default stream; NULL on the CPU
  void* workspace;         ///< scratch of the call, 256-byte aligned; NULL: allocated inside, on a CUDA device in stream order. On the
                           ///< CPU only vcattn_attend() uses it; vcattn_attention() has an argument of its own, and needs NULL here
  size_t workspace_bytes;  ///< at least vcattn_call_workspace_size(), to group vcattn_group_workspace_size(); 0 with NULL
} vcattn_call;

/// Results of attention.
typedef struct vcattn_output {
  uint32_t struct_size;     ///< required
  uint32_t reserved;        ///< required
  vcattn_mutable_tensor o;  ///< required: [B, Sq, H, D] (varlen [1, total_q, H, D]), any dtype and strides; memory of the call's device
  float* lse;               ///< NULL, or contiguous [B, H, Sq] (varlen [H, total_q]): natural log-sum-exp of the scaled scores
  int64_t lse_count;
} vcattn_output;

/// Inputs and outputs of vcattn_group(). With a call on a CUDA device all but seqused_k are device memory.
typedef struct vcattn_grouping {
  uint32_t struct_size;       ///< required
  uint32_t reserved;          ///< required
  vcattn_tensor v;            ///< required: [B, Sk, Hkv, D]
  int32_t* permutation;       ///< required, out: [B, Hkv, Sk], sorted[i] = original[perm[i]]
  int64_t permutation_count;  ///< required
  int32_t const* seqused_k;   ///< [B] valid keys; rows beyond are not looked at and keep their place
  int64_t seqused_k_count;
  float const* warm_centroids;  ///< of an earlier call on the same shape: warm_iterations from there; NULL: cold start
  int64_t warm_centroids_count;
  float* centroids;  ///< out: [B, Hkv, clusters, D], NULL: not wanted; apart from warm_centroids, or the same array
  int64_t centroids_count;
} vcattn_grouping;

/// Q, K and V after preparation. Holds no pointer to them; they may be freed.
typedef struct vcattn_prepared vcattn_prepared;

/// Permutations and centroids per (layer, branch) over the denoising steps of one generation, each on the device of the call that made it.
typedef struct vcattn_schedule vcattn_schedule;

/// "major.minor.patch" of the library, a static string.
VCATTN_C_API char const* vcattn_version(void);

/// VCATTN_ABI_VERSION of the library; callers refuse a library whose number is not their header's.
VCATTN_C_API uint32_t vcattn_abi_version(void);

/// Text of the calling thread's last failed call, "" if none failed. Valid until the thread's next failed call; success leaves it alone.
VCATTN_C_API char const* vcattn_last_error(void);

/// Fills `options` with the choices of a recipe ("exact", "vc8", "vc8s", ...). struct_size must be set.
/// Errors: invalid_argument, listing the names.
VCATTN_C_API vcattn_status vcattn_options_init(vcattn_options* options, char const* recipe);

/// Sets one choice by name, e.g. ("expcast", "two_line"), ("hadamard", "off").
/// Errors: invalid_argument, listing keys or values; options are then unchanged.
VCATTN_C_API vcattn_status vcattn_options_set(vcattn_options* options, char const* key, char const* value);

/// Answers in *supported whether the problem can be served (1) or not (0), and in `reason` why not: cut to reason_bytes, always terminated,
/// "" when supported; NULL with 0: not wanted. Looks at shapes, dtypes, strides and the small host arrays, never at tensor data.
/// Errors: invalid_argument for arguments that are no question (NULL, struct_size, unknown enumeration values); "no" is an answer.
VCATTN_C_API vcattn_status vcattn_supports(vcattn_problem const* problem, vcattn_options const* options, uint32_t device,
                                           uint32_t* supported, char* reason, size_t reason_bytes);

/// The same for vcattn_attend(), and so vcattn_prepare() too, with a call on `device`. On a CUDA device preparation needs check_finite 0,
/// 8-bit or NVFP4 formats (Q means: NVFP4), head_dim 40 to 128; with these vcattn_prepare() also serves what attention there does not
/// (NVFP4, blocks of V of 32 and 64 rows).
VCATTN_C_API vcattn_status vcattn_supports_call(vcattn_problem const* problem, vcattn_options const* options, uint32_t device,
                                                uint32_t* supported, char* reason, size_t reason_bytes);

/// Loads the kernels on the current CUDA device; does nothing the second time. vcattn_prepare(), vcattn_attend() and
/// vcattn_prepared_to_cuda() do it themselves, but it may not happen during a stream capture. Errors: unsupported without a usable device.
VCATTN_C_API vcattn_status vcattn_cuda_load_kernels(void);

/// Answers in *available whether the calling thread's current CUDA device can be used (1) or not (0), and in `reason` why not: not built
/// in, no driver, no device, an architecture without kernels. `reason` as for vcattn_supports(). Errors: invalid_argument.
VCATTN_C_API vcattn_status vcattn_cuda_available(uint32_t* available, char* reason, size_t reason_bytes);

/// Bytes of a prepared problem. Errors: invalid_argument, unsupported.
VCATTN_C_API vcattn_status vcattn_prepared_size(vcattn_problem const* problem, vcattn_options const* options, size_t* size_bytes);

/// Bytes of scratch that vcattn_attention() on `device` (VCATTN_CPU, or VCATTN_CUDA for the current one) needs on top: O(S) on the CPU, up
/// to 28 MB on a CUDA device. Errors: invalid_argument, unsupported.
VCATTN_C_API vcattn_status vcattn_workspace_size(vcattn_problem const* problem, vcattn_options const* options, uint32_t device,
                                                 size_t* size_bytes);

/// Bytes that vcattn_call::workspace needs on `device`; those of vcattn_prepare() where attention is not served there. Errors:
/// invalid_argument, unsupported.
VCATTN_C_API vcattn_status vcattn_call_workspace_size(vcattn_problem const* problem, vcattn_options const* options, uint32_t device,
                                                      size_t* size_bytes);

/// Groups (unless a permutation is given), smooths and quantises. With a call on a CUDA device everything but seqused_k and cu_seqlens is
/// device memory, the work is enqueued on the call's stream, codes are those of the CPU given the same permutation, and a given permutation
/// is not checked.
///
/// storage: NULL with 0 (the handle owns its memory), or at least vcattn_prepared_size() bytes, 256-byte aligned, alive as long as the
/// handle. *prepared is the caller's, to be given to vcattn_prepared_destroy(); NULL on failure. Errors: invalid_argument, unsupported,
/// nonfinite (with check_finite), out_of_memory.
VCATTN_C_API vcattn_status vcattn_prepare(vcattn_problem const* problem, vcattn_options const* options, void* storage, size_t storage_bytes,
                                          vcattn_call const* call, vcattn_prepared** prepared);

/// Copies a problem that was prepared on the CPU to the current CUDA device, and waits for the copy. `prepared` stays as it is and may be
/// destroyed.
///
/// storage: NULL with 0 (the handle owns its memory), or device memory of at least vcattn_prepared_bytes() bytes, 256-byte aligned, alive
/// as long as the handle. *on_device is the caller's, to be given to vcattn_prepared_destroy(); NULL on failure. Errors: invalid_argument
/// (also where `prepared` is on a device already), unsupported without a usable device, out_of_memory.
VCATTN_C_API vcattn_status vcattn_prepared_to_cuda(vcattn_prepared const* prepared, void* storage, size_t storage_bytes,
                                                   vcattn_prepared** on_device);

/// Where the prepared problem is, and so where vcattn_attention() runs: VCATTN_CPU or VCATTN_CUDA.
VCATTN_C_API vcattn_status vcattn_prepared_device(vcattn_prepared const* prepared, uint32_t* device);

/// Frees a handle; NULL is allowed. Storage that the caller supplied is his again. On a CUDA device: after the work that uses it.
VCATTN_C_API vcattn_status vcattn_prepared_destroy(vcattn_prepared* prepared);

/// Bytes that the prepared codes, descales and means occupy.
VCATTN_C_API vcattn_status vcattn_prepared_bytes(vcattn_prepared const* prepared, size_t* size_bytes);

/// Permutation in use, as vcattn_problem::permutation; NULL and 0 without keys. Points into the handle: valid until
/// vcattn_prepared_destroy(), and device memory where the handle's is.
VCATTN_C_API vcattn_status vcattn_prepared_permutation(vcattn_prepared const* prepared, int32_t const** permutation, int64_t* count);

/// Share of V's energy that the block means removed, mean over heads; NaN where the options have no means.
VCATTN_C_API vcattn_status vcattn_prepared_value_energy_removed(vcattn_prepared const* prepared, double* energy_removed);

/// O = softmax(scale Q K^T) V of a prepared problem, and its log-sum-exp. Rows without a key give O = 0 and lse = -inf.
///
/// call: its device must be that of `prepared`, so NULL where that is on the CPU. On a CUDA device o, lse and workspace are device memory;
/// the call enqueues on the stream and returns: it waits for nothing and may be captured into a graph.
/// workspace: NULL with 0 (allocated inside), or at least vcattn_workspace_size() bytes, 256-byte aligned. On a CUDA device NULL takes it
/// from a stream-ordered pool that the library keeps; captured, it becomes a memory node of the graph, with CUDA's rules for such graphs
/// (one executable at a time, no clones).
/// Errors: invalid_argument (shapes, overlap, device, workspace too small or misaligned), out_of_memory; on a CUDA device also unsupported,
/// with the reason of vcattn_supports().
VCATTN_C_API vcattn_status vcattn_attention(vcattn_prepared const* prepared, vcattn_output const* output, void* workspace,
                                            size_t workspace_bytes, vcattn_call const* call);

/// vcattn_prepare() and vcattn_attention() in one call, on the device of `call` (o and lse, too). Errors: those of both.
VCATTN_C_API vcattn_status vcattn_attend(vcattn_problem const* problem, vcattn_options const* options, vcattn_output const* output,
                                         vcattn_call const* call);

/// Clusters that `seqlen_kv` keys get when vcattn_options::clusters is 0; on a CUDA device at most 256. `order`: VCATTN_ORDER_*.
VCATTN_C_API vcattn_status vcattn_default_clusters(int64_t seqlen_kv, uint32_t order, int32_t* clusters);

/// k-means on the value tokens of each (batch, KV head), then the order that options->order asks for. call: NULL for the CPU.
///
/// Clusters: min(n, options->clusters or where that is 0 vcattn_default_clusters(n, order), on a CUDA device at most 256), n being the most
/// valid keys of a batch entry; 0 in sequence order, which has no centroids.
/// On a CUDA device the work is enqueued on the call's stream, by the same method as the CPU's with other roundings; call->workspace has
/// vcattn_group_workspace_size() bytes, or is NULL (from the stream-ordered pool). With a workspace nothing is allocated, and after
/// vcattn_cuda_load_kernels() the call may be captured into a graph.
/// Errors: invalid_argument when a buffer does not have exactly the size that its shape asks for, or overlaps v or another buffer; on a
/// CUDA device also unsupported (no usable device, head_dim above 128, more than 256 clusters), out_of_memory.
VCATTN_C_API vcattn_status vcattn_group(vcattn_grouping const* grouping, vcattn_options const* options, vcattn_call const* call);

/// Bytes that vcattn_call::workspace needs for vcattn_group() and vcattn_schedule_permutation() on `device`; 0 on the CPU. Of `grouping`
/// only v and seqused_k count. Errors: invalid_argument, unsupported.
VCATTN_C_API vcattn_status vcattn_group_workspace_size(vcattn_grouping const* grouping, vcattn_options const* options, uint32_t device,
                                                       size_t* size_bytes);

/// Clusters of vcattn_group(), which size its centroids: [B, Hkv, clusters, D]. Of `grouping` only v and seqused_k count. Errors:
/// invalid_argument, unsupported.
VCATTN_C_API vcattn_status vcattn_group_clusters(vcattn_grouping const* grouping, vcattn_options const* options, uint32_t device,
                                                 int32_t* clusters);

/// Share of V's energy that block means of `block` rows (32, 64 or 128) remove under a permutation (NULL with 0: sequence order), per
/// (batch, KV head). energy_removed: out, exactly [B, Hkv] doubles.
/// Errors: invalid_argument.
VCATTN_C_API vcattn_status vcattn_value_energy_removed(vcattn_tensor const* v, int32_t const* permutation, int64_t permutation_count,
                                                       int32_t block, int32_t const* seqused_k, int64_t seqused_k_count,
                                                       double* energy_removed, int64_t energy_removed_count);

/// Creates a schedule: VCATTN_SCHEDULE_* policy, steps between refreshes, share of the steps in which grouping is refreshed.
/// *schedule is the caller's, to be given to vcattn_schedule_destroy(); NULL on failure. Errors: invalid_argument.
VCATTN_C_API vcattn_status vcattn_schedule_create(uint32_t policy, int32_t refresh_interval, double group_fraction,
                                                  vcattn_schedule** schedule);

/// Frees a schedule; NULL is allowed.
VCATTN_C_API vcattn_status vcattn_schedule_destroy(vcattn_schedule* schedule);

/// What `step` (0-based) of `total_steps` will do for (layer, branch): VCATTN_ACTION_*.
/// Errors: invalid_argument for a step outside [0, total_steps).
VCATTN_C_API vcattn_status vcattn_schedule_decide(vcattn_schedule const* schedule, int64_t step, int64_t total_steps, int64_t layer,
                                                  int64_t branch, uint32_t* action);

/// Decides, regroups v if due, and gives the permutation to use; NULL and 0: sequence order. It points into the schedule and stays valid
/// until the next call for the same (layer, branch), vcattn_schedule_forget(), _clear() or _destroy().
/// Errors: invalid_argument when the stored state does not fit v (shape, dtype, valid keys, device): vcattn_schedule_forget() first.
///
/// call: NULL for the CPU. On a CUDA device v and the permutation are device memory, of which a state takes
/// B * Hkv * (4 Sk + 4 clusters D) bytes, and regrouping is enqueued on the call's stream. A state is regrouped in place: until it is
/// dropped or grouped cold for other shapes, the pointer stays the same and its content changes in the order of the stream. Only a cold
/// start without a state that fits allocates it. With a workspace (vcattn_group_workspace_size()) every other call allocates nothing, and
/// may be captured into a graph, which repeats what was decided at its capture. Errors: also those of vcattn_group().
VCATTN_C_API vcattn_status vcattn_schedule_permutation(vcattn_schedule* schedule, int64_t step, int64_t total_steps, int64_t layer,
                                                       int64_t branch, vcattn_tensor const* v, vcattn_options const* options,
                                                       int32_t const* seqused_k, int64_t seqused_k_count, int32_t const** permutation,
                                                       int64_t* count, vcattn_call const* call);

/// Drops the state of (layer, branch), e.g. after a change of resolution. Freeing device memory waits for the device and may not happen
/// during a stream capture; that holds for vcattn_schedule_clear() and _destroy(), too.
VCATTN_C_API vcattn_status vcattn_schedule_forget(vcattn_schedule* schedule, int64_t layer, int64_t branch);

/// Drops all states.
VCATTN_C_API vcattn_status vcattn_schedule_clear(vcattn_schedule* schedule);

#ifdef __cplusplus
}
#endif

#endif  // VCATTN_VCATTN_H
