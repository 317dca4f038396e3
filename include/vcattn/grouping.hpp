#pragma once

// Which V rows share a block: deterministic k-means per (batch, kv head), and the schedule that reuses its result over denoising steps.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "vcattn/attention.hpp"
#include "vcattn/options.hpp"

namespace vcattn {

/// Result of grouping: what may be kept between denoising steps. Means, descales and amax are never kept.
struct GroupingState {
  std::int64_t batch = 0, num_heads_kv = 0, seqlen_kv = 0, head_dim = 0;
  DType dtype = DType::f32;
  std::int32_t clusters = 0;
  std::vector<std::int32_t> seqused_k;    ///< [B] valid keys at the time of grouping
  std::vector<std::int32_t> permutation;  ///< [B, Hkv, Sk], sorted[i] = original[perm[i]]
  std::vector<float> centroids;           ///< [B, Hkv, clusters, D]

  bool empty() const { return permutation.empty(); }
};

/// Clusters used for `seqlen_kv` valid keys when options.clusters is 0: clamp(Sk / 500, 8, 64) in label order, clamp(Sk / 128, 4, 512) in
/// chain orders. Source: docs/experiments/grouping.md.
VCATTN_API std::int32_t default_clusters(std::int64_t seqlen_kv, GroupOrder order);

/// k-means on the value tokens of each (batch, kv head) [EQ-KMEANS], then the order that options.order asks for.
///
/// v: [B, Sk, Hkv, D], any dtype and strides. seqused_k: empty or [B]; rows beyond are not looked at and keep their place.
/// warm: nullptr (cold start: strided initial centroids, options.iterations) or a state of the same shape (its centroids,
/// options.warm_iterations). Deterministic: bitwise equal for any number of threads; ties go to the lowest index; an empty cluster keeps
/// its centroid. Errors: invalid_argument when `warm` does not fit (batch, heads, keys, head_dim, dtype, clusters).
VCATTN_API GroupingState group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k = {},
                                      GroupingState const* warm = nullptr);

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
/// Not thread-safe. `branch` tells apart the CFG halves or anything else whose values differ.
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

  /// Decides, regroups if due, and returns the permutation to use (empty: sequence order). The span stays valid until the next call for the
  /// same key. Errors: invalid_argument when the stored state does not fit v (shape, dtype, valid keys): call forget() after a change of
  /// resolution.
  std::span<std::int32_t const> permutation(std::int64_t step, std::int64_t total_steps, Key key, TensorView const& v,
                                            Options const& options, std::span<std::int32_t const> seqused_k = {});

  /// State kept for a key, nullptr if none.
  GroupingState const* state(Key key) const;
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
