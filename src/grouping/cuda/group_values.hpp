#pragma once

// Grouping of value rows on the device: the same method as group_values() of vcattn/grouping.hpp, with other roundings, centroids fitted on
// a sample, and few buckets per cluster instead of a full sort. Permutations differ from the CPU's; the energy removed is alike.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "formats/prepared_layout.hpp"
#include "vcattn/options.hpp"
#include "vcattn/types.hpp"

namespace vcattn::grouping::cuda {

/// V in device memory, with the extents of its sequences on both sides; of them only the key fields are read.
struct DeviceValues {
  TensorView v;         ///< [B, Sk, Hkv, D]; varlen: [1, rows, Hkv, D]
  bool varlen = false;  ///< sequences follow each other along dimension 1
  std::span<formats::SequenceExtent const> sequences;
  formats::SequenceExtent const* device_sequences = nullptr;
};

/// Empty if group_values() serves this.
std::string unsupported_reason(DeviceValues const& values, Options const& options);

/// Centroids per head: what the longest sequence gets, at most kMaxDeviceClusters by default. 0: sequence order.
std::int32_t num_clusters(DeviceValues const& values, Options const& options);

/// Bytes of group_values()'s centroids.
inline std::size_t centroid_bytes(DeviceValues const& values, Options const& options) {
  std::int64_t const heads = std::ssize(values.sequences) * values.v.num_heads();
  return static_cast<std::size_t>(heads * num_clusters(values, options) * values.v.head_dim()) * sizeof(float);
}

/// Bytes that group_values() needs for scratch, 256-byte aligned.
std::size_t workspace_bytes(DeviceValues const& values, Options const& options);

/// Loads the kernels into the current context. A graph capture must not be the first to use them.
void load_kernels();

/// Groups every (sequence, kv head) on `stream`: fits centroids on a sample of the rows, chains them, sorts all rows by bucket, lets
/// neighbouring blocks exchange rows. Asynchronous, allocates nothing, can be captured. Bitwise reproducible.
///
/// centroids: device, f32 [B][Hkv][num_clusters][D], written in the order of the chain; read before with `warm`, when
/// options.warm_iterations Lloyd steps are made instead of options.iterations from strided rows. permutation: device, as the section of
/// docs/formats.md; rows behind the valid ones keep their places and are never read. launched: called after every launch with the stage's
/// name, for measurements. Errors: unsupported, with unsupported_reason().
void group_values(DeviceValues const& values, Options const& options, bool warm, float* centroids, std::int32_t* permutation,
                  std::byte* workspace, void* stream, std::function<void(char const*)> const& launched = {});

}  // namespace vcattn::grouping::cuda
