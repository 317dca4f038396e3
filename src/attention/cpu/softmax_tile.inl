// Compiled once per instruction set (VCATTN_ISA), see device/cpu/gemm_eigen.inl for why Eigen's namespace is renamed.
// Loops over a row have the fixed length kTile, so that the compiler vectorises them.

#define VCATTN_CONCAT_(a, b) a##b
#define VCATTN_CONCAT(a, b) VCATTN_CONCAT_(a, b)
#define Eigen VCATTN_CONCAT(vcattn_eigen_, VCATTN_ISA)
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG

#include <Eigen/Core>

#include "attention/cpu/softmax_tile.hpp"
#include "core/expcast.hpp"
#include "core/nvfp4.hpp"
#include "core/online_softmax.hpp"

namespace vcattn::attention_cpu::VCATTN_ISA {

namespace {

template <typename T>
using RowArray = Eigen::Map<Eigen::Array<T, kTile, 1>, Eigen::Aligned64>;
template <typename T>
using Span = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;

/// x = f s (+ qbar . k) in code units, in `units`; returns the maximum over the visible keys.
template <typename T>
T scores_to_code_units(SoftmaxTile<T> const& tile, int r, T const* scores, T* units) {
  int const block = kTile / tile.key_blocks;
  for (int b = 0; b < tile.key_blocks; ++b) {
    T const factor = tile.row_factor[r] * tile.key_factor[b];
    for (int c = b * block; c < (b + 1) * block; ++c) units[c] = scores[c] * factor;
  }
  if (tile.score_offset != nullptr) {
    for (int c = 0; c < kTile; ++c) units[c] += tile.score_offset[c];
  }
  return Span<T>(units, tile.visible[r]).maxCoeff();
}

/// t = fma(s, f, row constant), or x + row constant where Q means have been added already.
template <typename T, typename Function>
inline __attribute__((always_inline)) void for_each_code(SoftmaxTile<T> const& tile, int r, T* row, Function const& code_value) {
  T const row_const = tile.state->row_const[r];
  if (tile.score_offset != nullptr) {
    for (int c = 0; c < kTile; ++c) row[c] = code_value(row[c], T{1}, row_const);
    return;
  }
  int const block = kTile / tile.key_blocks;
  for (int b = 0; b < tile.key_blocks; ++b) {
    T const factor = tile.row_factor[r] * tile.key_factor[b];
    for (int c = b * block; c < (b + 1) * block; ++c) row[c] = code_value(row[c], factor, row_const);
  }
}

/// row = 2^((t - reference) / 8) for t = s f + row constant. [EQ-EXP]
template <typename T>
void exponentials(SoftmaxTile<T> const& tile, int r, T* row) {
  T const reference = static_cast<T>(core::reference_code(tile.prob));
  T const nats_per_code = static_cast<T>(0.086643397569993163677L);
  for_each_code(tile, r, row, [=](T s, T f, T k) { return (s * f + (k - reference)) * nats_per_code; });
  RowArray<T> values(row);
  values = values.exp();
}

/// Nearest E4M3 value of v >= 0.
inline __attribute__((always_inline)) float round_e4m3(float v) {
  float const a = core::min_f32(v, core::kE4m3Max);
  std::uint32_t const u = core::f32_bits(a);
  float const normal = core::f32_from_bits((u + 0x7FFFFu + ((u >> 20) & 1u)) & 0xFFF00000u);
  float const subnormal = (a + 0x1p14f) - 0x1p14f;
  return a < 0x1p-6f ? subnormal : normal;
}

/// Nearest E2M1 value of v >= 0.
inline __attribute__((always_inline)) float round_e2m1(float v) {
  float const a = core::min_f32(v, core::kE2m1Max);
  std::uint32_t const u = core::f32_bits(a);
  float const normal = core::f32_from_bits((u + 0x1FFFFFu + ((u >> 22) & 1u)) & 0xFFC00000u);
  float const subnormal = (a + 0x1p22f) - 0x1p22f;
  return a < 1.0f ? subnormal : normal;
}

/// Value of an E4M3 code 0..126 held as a float.
inline __attribute__((always_inline)) float value_of_code(float code) {
  auto const integer = static_cast<std::uint32_t>(static_cast<std::int32_t>(code));
  return code < 8.0f ? code * 0x1p-9f : core::f32_from_bits((integer << 20) + (120u << 23));
}

/// Quantises probabilities in groups of 16 keys. [EQ-P-NVFP4]
void quantise_nvfp4(float* row, float range) {
  for (int g = 0; g < kTile; g += core::kNvfp4Group) {
    float amax16 = 0.0f;
    for (int c = g; c < g + core::kNvfp4Group; ++c) {
      row[c] *= range;
      amax16 = core::max_f32(amax16, row[c]);
    }
    float const factor = round_e4m3(amax16 / core::kE2m1Max);
    float const inverse = factor == 0.0f ? 0.0f : 1.0f / factor;
    for (int c = g; c < g + core::kNvfp4Group; ++c) row[c] = round_e2m1(row[c] * inverse) * factor;
  }
}

/// Scores of one row to decoded probabilities.
void probabilities(SoftmaxTile<float> const& tile, int r, float* row) {
  switch (tile.exp_form) {
    case ExpForm::exp:
      break;
    case ExpForm::paper:
      for_each_code(tile, r, row, [](float s, float f, float k) { return value_of_code(core::expcast_paper_code(s, f, k)); });
      return;
    case ExpForm::offset126:
      for_each_code(tile, r, row, [](float s, float f, float k) { return value_of_code(core::expcast_offset_code(s, f, k)); });
      return;
    case ExpForm::two_line:
      for_each_code(tile, r, row, [](float s, float f, float k) { return value_of_code(core::expcast_two_line_code(s, f, k)); });
      return;
    case ExpForm::affine:
      for_each_code(tile, r, row, [](float s, float f, float k) { return round_e4m3(core::expcast_affine_value(s, f, k)); });
      return;
  }
  exponentials(tile, r, row);
  switch (tile.prob) {
    case ProbFormat::f32:
      return;
    case ProbFormat::bf16:
      for (int c = 0; c < kTile; ++c) {
        std::uint32_t const u = core::f32_bits(row[c]);
        row[c] = core::f32_from_bits((u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u);
      }
      return;
    case ProbFormat::e4m3:
      for (int c = 0; c < kTile; ++c) row[c] = round_e4m3(row[c]);
      return;
    case ProbFormat::nvfp4:
      return;  // after masking, below
    case ProbFormat::nvfp4_two_level:
      return;
  }
}

void probabilities(SoftmaxTile<double> const& tile, int r, double* row) { exponentials(tile, r, row); }

/// FP16 scores: 11 significant bits, ties to even (the products are bounded, so neither overflow nor an FP16 subnormal matters).
void round_scores_f16(float* row) {
  for (int c = 0; c < kTile; ++c) {
    std::uint32_t const u = core::f32_bits(row[c]);
    row[c] = core::f32_from_bits((u + 0xFFFu + ((u >> 13) & 1u)) & 0xFFFFE000u);
  }
}
void round_scores_f16(double*) {}

void quantise_groups(ProbFormat prob, float* row) {
  if (prob == ProbFormat::nvfp4) quantise_nvfp4(row, 1.0f);
  if (prob == ProbFormat::nvfp4_two_level) quantise_nvfp4(row, core::kNvfp4Range);
}
void quantise_groups(ProbFormat, double*) {}

template <typename T>
void softmax_row(SoftmaxTile<T> const& tile, int r) {
  T* const row = tile.scores + r * kTile;
  T* const sums = tile.block_sums + r * kMaxBlocks;
  tile.alpha[r] = T{1};
  if (tile.visible[r] == 0) {
    for (int c = 0; c < kTile; ++c) row[c] = T{0};
    for (int b = 0; b < tile.value_blocks; ++b) sums[b] = T{0};
    return;
  }
  if (tile.f16_scores) round_scores_f16(row);
  alignas(64) T units[kTile];
  T const tile_max = scores_to_code_units(tile, r, row, units);
  if (tile.score_offset != nullptr) {
    for (int c = 0; c < kTile; ++c) row[c] = units[c];
  }
  RowStates<T>& state = *tile.state;
  bool const first = state.row_max[r] == -Eigen::NumTraits<T>::infinity();
  T const row_max = first || tile_max > state.row_max[r] ? tile_max : state.row_max[r];
  T const old_const = state.row_const[r];
  T const new_const = core::next_row_constant(tile.prob, tile.exp_form, tile.top_code, tile.f16_scores, row_max, old_const, first);
  if (!first && new_const != old_const) tile.alpha[r] = core::rescale_factor(new_const - old_const);  // [EQ-RESCALE]
  state.row_max[r] = row_max;
  state.row_const[r] = new_const;

  probabilities(tile, r, row);
  for (int c = tile.visible[r]; c < kTile; ++c) row[c] = T{0};
  quantise_groups(tile.prob, row);

  T total = 0;  // [EQ-ROWSUM]
  int const block = kTile / tile.value_blocks;
  for (int b = 0; b < tile.value_blocks; ++b) {
    sums[b] = Span<T>(row + b * block, block).sum();
    total += sums[b];
  }
  state.row_sum[r] = state.row_sum[r] * tile.alpha[r] + total;
}

template <typename T>
void softmax_tile(SoftmaxTile<T> const& tile) {
  for (int r = 0; r < tile.rows; ++r) softmax_row(tile, r);
}

template <typename T>
void rescale(int rows, int width, T const* alpha, T* acc) {
  for (int r = 0; r < rows; ++r) {
    if (alpha[r] == T{1}) continue;
    for (int d = 0; d < width; ++d) acc[r * width + d] *= alpha[r];
  }
}

}  // namespace

extern SoftmaxKernels const kSoftmaxKernels;
SoftmaxKernels const kSoftmaxKernels = {softmax_tile<float>, softmax_tile<double>, rescale<float>, rescale<double>};

}  // namespace vcattn::attention_cpu::VCATTN_ISA
