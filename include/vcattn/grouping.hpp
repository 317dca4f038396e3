#pragma once

// Which V rows share a block: deterministic k-means per (batch, kv head), and the schedule that reuses its result over denoising steps.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/options.hpp"

namespace vcattn {

/// Result of grouping: what may be kept between denoising steps. Means, descales and amax are never kept.
///
/// On the CPU the arrays are the vectors. On a CUDA device they are `device_memory`, which copies of the state share, and the vectors are
/// empty. Memory: B * Hkv * (4 Sk + 4 clusters D) bytes.
struct GroupingState {
  std::int64_t batch = 0, num_heads_kv = 0, seqlen_kv = 0, head_dim = 0;
  DType dtype = DType::f32;
  std::int32_t clusters = 0;
  std::vector<std::int32_t> seqused_k;    ///< [B] valid keys at the time of grouping
  std::vector<std::int32_t> permutation;  ///< [B, Hkv, Sk], sorted[i] = original[perm[i]]
  std::vector<float> centroids;           ///< [B, Hkv, clusters, D], in the order of the clusters: a warm start goes on from both
  Device device = Device::cpu;
  std::int32_t device_ordinal = 0;      ///< of a CUDA device
  std::shared_ptr<void> device_memory;  ///< permutation, then centroids

  bool empty() const { return permutation.empty() && device_memory == nullptr; }
  /// The arrays, in memory of `device`.
  std::span<std::int32_t const> permutation_view() const {
    if (device == Device::cpu) return permutation;
    return {static_cast<std::int32_t const*>(device_memory.get()), static_cast<std::size_t>(batch * num_heads_kv * seqlen_kv)};
  }
  std::span<float const> centroids_view() const {
    if (device == Device::cpu) return centroids;
    auto const* const begin = static_cast<std::byte const*>(device_memory.get()) + permutation_view().size_bytes();
    return {reinterpret_cast<float const*>(begin), static_cast<std::size_t>(batch * num_heads_kv * clusters * head_dim)};
  }
};

/// Clusters used for `seqlen_kv` valid keys when options.clusters is 0: clamp(Sk / 500, 8, 64) in label order, clamp(Sk / 128, 4, 512) in
/// chain orders; on a CUDA device at most 256. Source: docs/experiments/grouping.md.
VCATTN_API std::int32_t default_clusters(std::int64_t seqlen_kv, GroupOrder order);

/// k-means on the value tokens of each (batch, kv head) [EQ-KMEANS], then the order that options.order asks for.
///
/// v: [B, Sk, Hkv, D], any dtype and strides. seqused_k: empty or [B]; rows beyond are not looked at and keep their place.
/// warm: nullptr (cold start: strided initial centroids, options.iterations) or a state of the same shape (its centroids,
/// options.warm_iterations). Deterministic: bitwise equal for any number of threads; ties go to the lowest index; an empty cluster keeps
/// its centroid. Errors: invalid_argument when `warm` does not fit (batch, heads, keys, head_dim, dtype, clusters).
VCATTN_API GroupingState group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k = {},
                                      GroupingState const* warm = nullptr);

/// The same on the device of `call`. On a CUDA device v is device memory, seqused_k stays host memory, and so is the state's permutation
/// and centroids, which are allocated here (so not during a stream capture). `warm` must be on the same device; it is only read. The work
/// is enqueued on call.stream; call.workspace: grouping_sizes().workspace_bytes, or empty (from the stream-ordered pool that the library
/// keeps). Same method as the CPU's with other roundings, at most 256 clusters by default, bitwise equal from run to run. Errors: also
/// unsupported (no usable device, head_dim above 128, more than 256 clusters, v_block other than 32, 64 or 128), out_of_memory.
VCATTN_API GroupingState group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k,
                                      GroupingState const* warm, Call const& call);

/// What group_values() needs for values of that shape.
struct GroupingSizes {
  std::int32_t clusters = 0;        ///< 0: sequence order, which has no centroids
  std::size_t permutation = 0;      ///< elements: B * Hkv * Sk
  std::size_t centroids = 0;        ///< elements: B * Hkv * clusters * D
  std::size_t workspace_bytes = 0;  ///< of Call::workspace; 0 on the CPU
};

/// Looks at the shape and seqused_k, never at the values. Errors: those of group_values().
VCATTN_API GroupingSizes grouping_sizes(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k = {},
                                        Device device = Device::cpu);

/// Arrays of the caller, in memory of the call's device.
struct GroupingBuffers {
  std::span<std::int32_t> permutation;         ///< out, of grouping_sizes().permutation elements
  std::span<float> centroids;                  ///< out, of grouping_sizes().centroids elements; empty: not wanted
  std::span<float const> warm_centroids = {};  ///< of an earlier call on the same shape, may be `centroids` itself; empty: cold start
};

/// Groups into memory of the caller. On a CUDA device nothing is allocated where a workspace is given, nothing is waited for, and the call
/// may be captured into a graph after load_cuda_kernels(). Errors: as above; also invalid_argument for arrays of another size.
VCATTN_API void group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k,
                             GroupingBuffers const& grouping, Call const& call);

/// Share of V's energy that block means of `options.v_block` rows remove under a permutation (empty: sequence order), per (batch, kv head)
/// [B, Hkv]. Energy is measured about the per-channel mean over valid keys [EQ-ENERGY].
VCATTN_API std::vector<double> value_energy_removed(TensorView const& v, std::span<std::int32_t const> permutation, std::int32_t block,
                                                    std::span<std::int32_t const> seqused_k = {});

/// What a call at one denoising step should do.
enum class GroupingAction : std::uint32_t { sequence_order, regroup_cold, regroup_warm, reuse };

enum class SchedulePolicy : std::uint32_t {
  never,          ///< sequence order at every step
  first_quarter,  ///< the paper's: regroup in the first 25 % of the steps every `refresh_interval` steps, warm-started; reuse in between
                  ///< and afterwards
  every_step,     ///< one warm iteration at every step
};

/// Keeps permutations and centroids per (layer, branch) over the denoising steps of one generation.
///
/// Not thread-safe. `branch` tells apart the CFG halves or anything else whose values differ. A state is kept on the device of the call
/// that made it, see GroupingState for its size; copies of a schedule share device memory.
class VCATTN_API GroupingSchedule {
 public:
  struct Key {
    std::int64_t layer = 0;
    std::int64_t branch = 0;
    auto operator<=>(Key const&) const = default;
  };

  explicit GroupingSchedule(SchedulePolicy policy = SchedulePolicy::first_quarter, std::int32_t refresh_interval = 4,
                            double group_fraction = 0.25);

  /// Decision for `step` of `total_steps` (0-based). Errors: invalid_argument for a step outside [0, total_steps).
  GroupingAction decide(std::int64_t step, std::int64_t total_steps, Key key) const;

  /// Decides, regroups if due, and returns the permutation to use, in memory of the call's device (empty: sequence order). The span stays
  /// valid until the next call for the same key. Errors: invalid_argument when the stored state does not fit v (shape, dtype, valid keys,
  /// device): call forget() after a change of resolution or device.
  ///
  /// On a CUDA device v is device memory, and regrouping is enqueued on call.stream (workspace as in group_values()): nothing is waited
  /// for. The state is regrouped in place: until it is forgotten, or grouped cold for other shapes, the span stays the same and its content
  /// changes in the order of the stream. Only a cold start without a state that fits allocates it. With a workspace every other call
  /// allocates nothing, and may be captured into a graph, which repeats what was decided at its capture. Calls for one key on different
  /// streams must be ordered by the caller.
  std::span<std::int32_t const> permutation(std::int64_t step, std::int64_t total_steps, Key key, TensorView const& v,
                                            Options const& options, std::span<std::int32_t const> seqused_k = {}, Call const& call = {});

  /// State kept for a key, nullptr if none.
  GroupingState const* state(Key key) const;
  /// Both free device memory, which waits for the device and may not happen during a stream capture.
  void forget(Key key);
  void clear();

 private:
  struct Entry {
    GroupingState state;
    std::int64_t last_grouped_step = -1;
  };
  SchedulePolicy policy_;
  std::int32_t refresh_interval_;
  double group_fraction_;
  std::map<Key, Entry> entries_;
};

}  // namespace vcattn
