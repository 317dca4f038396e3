#pragma once

// The whole preparation of a problem, in double: what a back end's prepared slab must hold. Descales and means are compared within FP32
// rounding; codes must be equal except where `Coded::scaled` is within FP32 rounding of a midpoint between two code values.

#include <cstdint>
#include <vector>

#include "reference/problem_rows.hpp"
#include "reference/stages.hpp"
#include "vcattn/options.hpp"

namespace vcattn::reference {

/// One query head of one sequence.
struct QueryHead {
  Coded codes;                         // [Sq, Dp]
  Descales descale;                    // per q_block rows, or one
  Matrix tile_mean;                    // [EQ-QMEAN] [tiles of 128 rows, Dp], FP32 values; no rows without Q means
  std::vector<double> lse_correction;  // [Sq] tau * q . k_mean; NaN where the query row, or the head's K or V, is not finite
  float score_multiplier = 0;          // f = multiplier with `unit` scaling, else q_descale * multiplier * k_descale
  double score_bound = 0;              // [EQ-BOUND]
  bool f16_scores = false;
};

/// One KV head of one sequence; keys in sorted order, valid ones only.
struct KeyValueHead {
  std::vector<std::int64_t> order;   // sorted[i] = original[order[i]]
  Coded k;                           // [Sk, Dp]
  Descales k_descale;                // per k_block rows, or one
  Matrix k_high;                     // with Q means: smoothed K in BF16 [Sk, Dp]; else no rows
  Coded v;                           // transposed: [Dp, keys padded to a multiple of 128], padding is 0
  Descales v_descale;                // per channel [Dp]
  Matrix v_mean;                     // with V-Smooth: FP16 values in units of v_descale [blocks of v_block keys, Dp]; else no rows
  std::vector<float> v_global_mean;  // [Dp], what is added to O: with EMC, the mean of V and what FP16 lost of v_mean; 0 without V-Smooth
};

struct PreparedSequence {
  Sequence sequence;
  std::vector<QueryHead> q;      // [H]
  std::vector<KeyValueHead> kv;  // [Hkv]
};

/// All sequences of a problem. Key order is problem.permutation (empty: the caller's); options.order is not looked at.
std::vector<PreparedSequence> prepare_reference(Problem const& problem, Options const& options);

/// Softmax scale as every prepared back end uses it: rounded to FP32.
double softmax_scale_f32(Problem const& problem);

bool has_unit_scores(Options const& options);

}  // namespace vcattn::reference
