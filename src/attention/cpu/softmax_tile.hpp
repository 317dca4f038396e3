#pragma once

// Online softmax of one 128 x 128 tile of scores: scores in, decoded probabilities, block sums and rescale factors out.
// Compiled once per instruction set.

#include <cstdint>

#include "device/cpu/isa.hpp"
#include "vcattn/options.hpp"

namespace vcattn::attention_cpu {

inline constexpr int kTile = 128;
inline constexpr int kMaxBlocks = 4;  // blocks of 32 rows in a tile

/// Running state of the rows of a query tile.
template <typename T>
struct RowStates {
  alignas(64) T row_max[kTile];    // M, in code units; -inf before the first key
  alignas(64) T row_const[kTile];  // T: t = x + row_const
  alignas(64) T row_sum[kTile];    // l
};

/// One step of the loop over key tiles. All arrays are 64-byte aligned.
template <typename T>
struct SoftmaxTile {
  // In.
  int rows = 0;                   // valid query rows
  T* scores = nullptr;            // [kTile][kTile] products of codes; overwritten by the decoded probabilities
  T const* row_factor = nullptr;  // [kTile] q_descale * m
  T const* key_factor = nullptr;  // [key_blocks] k_descale of each block of the tile
  int key_blocks = 1;
  T const* score_offset = nullptr;        // [kTile] qbar . k in code units, nullptr without Q means
  bool f16_scores = false;                // round the scores to FP16 first
  std::int32_t const* visible = nullptr;  // [kTile] keys of this tile that each row sees, 0..kTile
  int value_blocks = 1;                   // V blocks of the tile
  ProbFormat prob = ProbFormat::f32;
  ExpForm exp_form = ExpForm::exp;
  int top_code = 126;
  // In and out.
  RowStates<T>* state = nullptr;
  // Out.
  T* alpha = nullptr;       // [kTile] factor for what was accumulated before
  T* block_sums = nullptr;  // [kTile][kMaxBlocks] r_ij
};

struct SoftmaxKernels {
  void (*tile_f32)(SoftmaxTile<float> const&);
  void (*tile_f64)(SoftmaxTile<double> const&);
  /// acc[r][0..width) = acc[r][..] * alpha[r] for the rows whose alpha is not 1; leading dimension = width.
  void (*rescale_f32)(int rows, int width, float const* alpha, float* acc);
  void (*rescale_f64)(int rows, int width, double const* alpha, double* acc);
};

SoftmaxKernels const& softmax_kernels(device::cpu::Isa isa);

}  // namespace vcattn::attention_cpu
