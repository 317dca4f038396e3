#pragma once

// Scores of a 64 x 128 tile to E4M3 probability codes, in registers.
//
// A thread holds 64 scores: rows r = 0, 1 (lane / 4 + 8 r of its warp's 16) and, for g = 0..15 and i = 0, 1, keys 8 g + 2 (lane % 4) + i.
// FP16 subnormals are integers: t * 2^-24 rounded to FP16 has the bit pattern rne(t), so a conversion or a packed fma yields the code, and
// `.relu` clamps it at 0.

#include <cfloat>
#include <climits>

#include "attention/sm90a/params.cuh"
#include "attention/sm90a/tile_config.hpp"
#include "core/online_softmax.hpp"
#include "device/ptx/packed.cuh"

namespace vcattn::attention_sm90a {

constexpr float kCodeUnit = 0x1p-24f;  // FP16 value of the bit pattern 1

/// One query row, in code units.
struct RowState {
  float max = -INFINITY;
  float constant = INFINITY;  // until a key has been seen
  float sum = 0.0f;           // of this thread's columns only, until the end
  float out_factor = 0.0f;    // what the promoted accumulators must be multiplied by; 0: nothing promoted yet
};

/// Scores as the tensor core delivers them.
template <class C>
struct ScoreTile {
  using Element = std::conditional_t<C::kScores == Scores::f32, float, std::uint32_t>;
  Element s[C::kScoreRegisters];
};

/// Two keys per register. lines: t, integers in FP16 subnormals; exp: two code bytes.
struct PairTile {
  std::uint32_t c[32];
};

/// Keys of this tile that rows 0 and 1 of the thread see.
struct Visible {
  int keys[2];
};

/// Row 0 of this thread inside the query tile; row 1 is eight further down.
__device__ __forceinline__ int row_of_thread(int warpgroup) {
  return warpgroup * kWarpgroupRows + static_cast<int>(threadIdx.x % kWarpgroupThreads / 32 * 16 + threadIdx.x % 32 / 4);
}
__device__ __forceinline__ int key_of(int g, int i) { return 8 * g + 2 * static_cast<int>(threadIdx.x & 3) + i; }

/// Lowest score, so that invisible keys do not take part in the maximum.
template <class C>
__device__ void mask_scores(ScoreTile<C>& tile, Visible const& visible) {
  constexpr std::uint32_t kLowestHalf = 0xFBFFu;
#pragma unroll
  for (int g = 0; g < 16; ++g) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (key_of(g, i) < visible.keys[r]) continue;
        if constexpr (C::kScores == Scores::f16) {
          std::uint32_t& pair = tile.s[2 * g + r];
          pair = i == 0 ? (pair & 0xFFFF0000u) | kLowestHalf : (pair & 0xFFFFu) | (kLowestHalf << 16);
        } else if constexpr (C::kScores == Scores::f32) {
          tile.s[4 * g + 2 * r + i] = -FLT_MAX;
        } else {
          tile.s[4 * g + 2 * r + i] = static_cast<std::uint32_t>(INT_MIN);
        }
      }
    }
  }
}

/// Maximum over the quad of threads that share a row.
template <typename T, typename Max>
__device__ __forceinline__ T quad_max(T x, Max const& max) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

/// Maximum of each row, in the units of the tensor core.
template <class C>
__device__ __forceinline__ void row_maxima(ScoreTile<C> const& tile, float (&maxima)[2]) {
  auto const& s = tile.s;
  if constexpr (C::kScores == Scores::f16) {
    ptx::Half2 a[2] = {s[0], s[1]}, b[2] = {s[2], s[3]};
#pragma unroll
    for (int g = 2; g < 16; g += 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        a[r] = ptx::max_half2(a[r], s[2 * g + r]);
        b[r] = ptx::max_half2(b[r], s[2 * g + 2 + r]);
      }
    }
    a[0] = ptx::max_half2(a[0], b[0]);
    a[1] = ptx::max_half2(a[1], b[1]);
    ptx::Half2 both = ptx::max_half2(ptx::permute_bytes(a[0], a[1], 0x5410), ptx::permute_bytes(a[0], a[1], 0x7632));
    both = quad_max(both, ptx::max_half2);
    maxima[0] = ptx::low_float(both);
    maxima[1] = ptx::high_float(both);
  } else {
    using Value = std::conditional_t<C::kScores == Scores::f32, float, int>;
    auto const larger = [](Value x, Value y) { return max(x, y); };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Value m = static_cast<Value>(s[2 * r]);
#pragma unroll
      for (int g = 0; g < 16; ++g) m = larger(larger(m, static_cast<Value>(s[4 * g + 2 * r])), static_cast<Value>(s[4 * g + 2 * r + 1]));
      maxima[r] = static_cast<float>(quad_max(m, larger));
    }
  }
}

/// Whether the row constant stays as long as no code would pass 126. [EQ-EXPCAST-OFFSET]
template <class C>
__device__ __forceinline__ bool has_head_room(KernelParams const& p) {
  if constexpr (C::kProbabilities == Probabilities::exp) return false;
  if constexpr (C::kScores == Scores::f16) return true;
  return p.head_room != 0;
}

/// Whether it must move for a tile with that maximum.
template <class C>
__device__ __forceinline__ bool must_move(KernelParams const& p, RowState const& row, float tile_max) {
  return has_head_room<C>(p) ? tile_max + row.constant > static_cast<float>(core::kE4m3TopCode) : tile_max > row.max;
}

/// Moves the row constant and returns alpha. [EQ-RESCALE] [EQ-TOP-ALIGN]
template <class C>
__device__ __forceinline__ float move_constant(KernelParams const& p, RowState& row, float tile_max) {
  bool const started = row.constant < INFINITY;
  float const old = row.constant;
  row.max = tile_max;  // larger than the maximum so far, or the constant would not have to move
  if constexpr (C::kScores == Scores::f16 && C::kProbabilities == Probabilities::lines) {
    row.constant = static_cast<float>(p.aligned_top[core::top_fraction(tile_max)]) - ceilf(tile_max);
  } else {
    // Rounded down, as the maximum is rounded up: a code may fall one rounding short of the top, but never pass it.
    row.constant = __fsub_rd(p.top_position, tile_max);
  }
  float const alpha = started ? ptx::exp2_approximate((row.constant - old) * 0.125f) : 1.0f;
  row.sum *= alpha;
  row.out_factor *= alpha;
  return alpha;
}

template <class C>
__device__ __forceinline__ float score_value(ScoreTile<C> const& tile, int g, int r, int i) {
  if constexpr (C::kScores == Scores::f16) {
    return i == 0 ? ptx::low_float(tile.s[2 * g + r]) : ptx::high_float(tile.s[2 * g + r]);
  } else if constexpr (C::kScores == Scores::f32) {
    return tile.s[4 * g + 2 * r + i];
  } else {
    return static_cast<float>(static_cast<std::int32_t>(tile.s[4 * g + 2 * r + i]));
  }
}

/// t = rne(factor s + constant). [EQ-EXPCAST-TWOLINE] [EQ-EXPCAST-OFFSET] [EQ-EXPCAST-PAPER]
template <class C>
__device__ __forceinline__ void upper_lines(ScoreTile<C> const& tile, RowState const (&row)[2], float factor, PairTile& t) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float const scaled_factor = factor * kCodeUnit;
    float const scaled_constant = row[r].constant * kCodeUnit;
    ptx::Half2 const factor2 = ptx::pack_half2(scaled_factor, scaled_factor);
    ptx::Half2 const constant2 = ptx::pack_half2(scaled_constant, scaled_constant);
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      if constexpr (C::kScores == Scores::f16) {
        t.c[2 * g + r] = ptx::fma_half2(tile.s[2 * g + r], factor2, constant2);
      } else {
        t.c[2 * g + r] = ptx::pack_half2(__fmaf_rn(score_value(tile, g, r, 0), scaled_factor, scaled_constant),
                                         __fmaf_rn(score_value(tile, g, r, 1), scaled_factor, scaled_constant));
      }
    }
  }
}

/// p = E4M3(2^((t - 56) / 8)). [EQ-EXP]
template <class C>
__device__ __forceinline__ void exponentials(ScoreTile<C> const& tile, RowState const (&row)[2], float factor, PairTile& codes) {
  constexpr float kOctave = 8.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float const factor_log2 = factor / kOctave;
    float const constant_log2 = (row[r].constant - core::kCodeOfOne) / kOctave;
    auto const prob = [&](int g, int i) {
      return ptx::exp2_approximate(__fmaf_rn(score_value(tile, g, r, i), factor_log2, constant_log2));
    };
#pragma unroll
    for (int g = 0; g < 16; ++g) codes.c[2 * g + r] = ptx::pack_e4m3x2(prob(g, 0), prob(g, 1));
  }
}

/// First half of the softmax, which frees the registers of the scores.
template <class C>
__device__ __forceinline__ void start_codes(ScoreTile<C> const& tile, RowState const (&row)[2], float factor, PairTile& pairs) {
  if constexpr (C::kProbabilities == Probabilities::lines) {
    upper_lines(tile, row, factor, pairs);
  } else {
    exponentials(tile, row, factor, pairs);
  }
}

/// Second half: code = max(t, rne(slope t + offset), 0), and codes to the A operand of P V: register 2 q + r holds slots
/// 4 (lane % 4) .. + 3 of the q-th group of 16. [EQ-EXPCAST-TWOLINE] [EQ-KEY-SLOT]
template <class C>
__device__ __forceinline__ void finish_codes(KernelParams const& p, PairTile& pairs, std::uint32_t (&probs)[C::kProbRegisters]) {
  constexpr bool kLines = C::kProbabilities == Probabilities::lines;
  if constexpr (kLines) {
#pragma unroll
    for (int k = 0; k < 32; ++k) pairs.c[k] = ptx::max_half2(pairs.c[k], ptx::fma_relu_half2(pairs.c[k], p.slope2, p.offset2));
  }
  constexpr std::uint32_t kLowBytes = kLines ? 0x6420 : 0x5410;
#pragma unroll
  for (int q = 0; q < 8; ++q) {
#pragma unroll
    for (int r = 0; r < 2; ++r) probs[2 * q + r] = ptx::permute_bytes(pairs.c[4 * q + r], pairs.c[4 * q + 2 + r], kLowBytes);
  }
}

/// Invisible keys have probability 0 exactly.
template <int kCount>
__device__ void mask_probabilities(std::uint32_t (&probs)[kCount], Visible const& visible) {
#pragma unroll
  for (int q = 0; q < kCount / 2; ++q) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t keep = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (key_of(2 * q + j / 2, j % 2) < visible.keys[r]) keep |= 0xFFu << (8 * j);
      }
      probs[2 * q + r] &= keep;
    }
  }
}

}  // namespace vcattn::attention_sm90a
