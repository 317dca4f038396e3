#pragma once

// What the kernels of grouping get, and the constants that host and device share.

#include <cstdint>

#include "core/config.hpp"
#include "formats/prepared_layout.hpp"
#include "grouping/cluster_rule.hpp"

namespace vcattn::grouping::cuda {

/// The shared memory of a multiprocessor holds the centroids of a head, their sums and a tile of rows.
inline constexpr std::int32_t kMaxDeviceClusters = 256;
/// Centroid arrays are padded to whole pairs of 8-column matrix tiles.
inline constexpr std::int32_t kClusterPadding = 16;
/// Buckets of a cluster along the chain. Few are better than a full sort: inside a bucket rows keep the sequence's order, in which
/// neighbours are alike as well.
inline constexpr std::int32_t kChainBins = 8;

/// Centroids are fitted on every n-th row, such that a cluster sees about this many; fewer cost energy.
inline constexpr std::int32_t kSampleRowsPerCluster = 256;
/// Parts of a sample that are summed apart, then added in ascending order.
inline constexpr std::int32_t kFitSlices = 16;
inline constexpr std::int32_t kFitTileRows = 128;

/// Rows that one CTA assigns and sorts.
inline constexpr std::int32_t kSliceRows = 2048;

/// Rows among which neighbouring blocks exchange theirs, and the passes over even and odd pairs of blocks.
inline constexpr std::int32_t kWindowRows = 768;
inline constexpr std::int32_t kMaxWindowBlocks = 8;
inline constexpr std::int32_t kExchangePasses = 4;
VCATTN_HD constexpr std::int32_t window_blocks(std::int32_t v_block) {
  std::int32_t const fitting = kWindowRows / v_block;
  return fitting < kMaxWindowBlocks ? fitting : kMaxWindowBlocks;
}

/// How V lies in memory, for kernels that are compiled for the usual cases.
enum class Source : std::uint32_t {
  bf16,  ///< 16-byte aligned runs of 8 channels
  f16,   ///< likewise
  any,   ///< any dtype and strides
};

struct Params {
  void const* v = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride[4] = {};  // elements: batch, row, head, channel
  formats::SequenceExtent const* sequences = nullptr;
  std::int32_t varlen = 0;
  std::int32_t num_heads_kv = 0, head_dim = 0, width = 0;  // width: head_dim padded to 64 or 128
  std::int32_t v_block = 0;

  ClusterRule rule;
  std::int32_t grouped = 0;   // 0: sequence order
  std::int32_t chained = 0;   // 0: clusters in label order
  std::int32_t bins = 1;      // buckets per cluster
  std::int32_t warm = 0;      // start from `centroids`
  std::int32_t clusters = 0;  // of the longest sequence: rows of a head in `centroids`
  std::int32_t padded_clusters = 0;
  std::int32_t row_slices = 0;  // of the longest sequence

  float* centroids = nullptr;           // [heads][clusters][head_dim], heads = B * Hkv
  std::int32_t* permutation = nullptr;  // as in docs/formats.md

  // Workspace. Means are centroids about the head's origin.
  std::uint16_t* origin = nullptr;         // BF16 [heads][width]
  float* means = nullptr;                  // [heads][padded_clusters][width]
  float* chained_means = nullptr;          // likewise, in the order of the chain
  float* bins_per_distance = nullptr;      // [heads][padded_clusters]
  float* sums = nullptr;                   // [heads][kFitSlices][padded_clusters][width]
  std::int32_t* counts = nullptr;          // [heads][kFitSlices][padded_clusters]
  std::uint16_t* buckets = nullptr;        // of every row, laid out like the permutation
  std::int32_t* bucket_offsets = nullptr;  // [heads][row_slices][padded_clusters * bins]: rows in it, then where they begin

  VCATTN_HD constexpr std::int32_t num_buckets() const { return padded_clusters * bins; }
};

}  // namespace vcattn::grouping::cuda
