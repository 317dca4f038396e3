#pragma once

// What the host hands to a kernel, by value.

#include <cuda.h>

#include <cstdint>

#include "core/online_softmax.hpp"
#include "formats/prepared_layout.hpp"

namespace vcattn::attention_sm90a {

struct KernelParams {
  CUtensorMap q_map, k_map, v_map, mean_map;

  // Prepared slab, device memory (docs/formats.md).
  formats::SequenceExtent const* sequences;
  float const* q_descale;         // nullptr: unit scaling
  float const* k_descale;         // nullptr: unit scaling
  float const* score_multiplier;  // [B][H]
  std::uint8_t const* score_variant;
  float const* v_descale;
  float const* v_global_mean;  // nullptr: no block means
  float const* lse_correction;
  std::int32_t batch, num_heads, num_heads_kv, head_dim;
  std::int32_t q_blocks_per_tile;  // 0: descales per (batch, head)
  std::int64_t rows_q;             // per head, all sequences
  std::int32_t causal;
  std::int32_t variant;  // heads with another score_variant are left to another launch; < 0: all heads

  // Softmax.
  std::int32_t head_room;         // the row constant moves only when a code would pass 126
  float top_position;             // row constant + row maximum, code units
  std::uint32_t slope2, offset2;  // second line of ExpCast, both halves: slope, and offset in units of 2^-24; 0, 0: none
  float log_bias;                 // [EQ-LSE-BIAS]
  std::int32_t window;            // key tiles per promotion of the accumulators, 1..16
  // [EQ-TOP-ALIGN] integer constants of FP16 scores: top code minus j, by the fraction of the row maximum.
  std::int8_t aligned_top[core::kTopFractions + 1];

  // The split of the last wave (split.cuh); nullptr: every query tile is worked on by one CTA.
  void* parts;  // Part<C> [gridDim.x + split tiles - 1]

  // Output.
  void* o;
  std::int64_t o_stride[4];
  std::int32_t o_pairs;  // neighbouring channels may be stored together
  DType o_dtype;
  std::int32_t varlen;
  float* lse;  // nullptr: not wanted
};

}  // namespace vcattn::attention_sm90a
