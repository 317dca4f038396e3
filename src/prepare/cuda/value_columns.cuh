#pragma once

// V in NVFP4, and in blocks of 32 or 64 rows: a thread has one channel of all rows of a tile, so that what rows share, be it a scale factor
// or a mean, needs no other thread. (value.cuh has E4M3 with one mean a tile.)

#include "prepare/cuda/nvfp4.cuh"
#include "prepare/cuda/value.cuh"

namespace vcattn::preparation::cuda {

inline constexpr int kGroupRows = core::kNvfp4Group;  // of [EQ-KEY-SLOT], and of an NVFP4 scale factor
inline constexpr int kStepsPerGroup = kGroupRows / core::kRowPartials;

/// Sum of partials. [EQ-FIXED-ORDER]
__device__ __forceinline__ float sum_of_partials(float (&partials)[core::kRowPartials]) {
#pragma unroll
  for (int stride = core::kRowPartials / 2; stride >= 1; stride /= 2) {
#pragma unroll
    for (int k = 0; k < stride; ++k) partials[k] += partials[k + stride];
  }
  return partials[0];
}

/// A thread's channel of 16 rows: V - m where a row is valid, else 0. dropped: as in ColumnWalk::packed(). [EQ-VSMOOTH]
template <typename Walk>
__device__ __forceinline__ void load_residuals(Walk const& walk, std::uint32_t const* dropped, int group, float mean,
                                               float (&r)[kGroupRows]) {
  int const valid = walk.tiles.at.count() - group * kGroupRows;
  if (valid >= kGroupRows && dropped == nullptr) {
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) r[i] = walk.column(group, i, nullptr) - mean;
    return;
  }
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) r[i] = i < valid ? walk.column(group, i, dropped) - mean : 0.0f;
}

/// Valid rows of block b of a tile.
__device__ __forceinline__ int valid_rows(TilePlace const& at, int block_rows, int b) {
  return min(max(at.count() - b * block_rows, 0), block_rows);
}

/// First sweep over V where a tile has several blocks: sums of tiles and of blocks, largest residuals, rows that do not count.
template <DType kType, int kWidth>
__global__ void __launch_bounds__(kWidth, column_ctas<kType>(kWidth)) value_block_stats_kernel(__grid_constant__ KernelParams const p) {
  using Walk = ColumnWalk<kType, kWidth, true>;
  extern __shared__ uint4 memory[];
  RopeTables const no_rope{};
  int const block_rows = static_cast<int>(kTileRows) / p.v_blocks;
  for (Walk walk(p, p.v, no_rope, *reinterpret_cast<typename Walk::Smem*>(memory)); walk.tiles.more(); walk.step()) {
    walk.arrive();
    TilePlace const& at = walk.tiles.at;
    std::uint32_t const* dropped;
    Channels const tile_sum = walk.sums(&dropped);
    if (walk.leads()) tile_sum.store(p.v_tile_sums + at.index * std::int64_t{kWidth} + walk.channel());

    float amax = 0.0f;
    for (int b = 0; b < p.v_blocks; ++b) {
      int const first = b * block_rows / kGroupRows;
      int const end = first + block_rows / kGroupRows;
      float partials[core::kRowPartials] = {};
#pragma unroll 1
      for (int group = first; group < end; ++group) {
#pragma unroll
        for (int i = 0; i < kGroupRows; ++i) partials[i % core::kRowPartials] += walk.column(group, i, dropped);
      }
      float const sum = sum_of_partials(partials);
      p.v_block_sums[(at.index * std::int64_t{p.v_blocks} + b) * kWidth + threadIdx.x] = sum;
      float const mean = sum / static_cast<float>(max(valid_rows(at, block_rows, b), 1));
#pragma unroll 1
      for (int group = first; group < end; ++group) {
        float r[kGroupRows];
        load_residuals(walk, dropped, group, mean, r);
        walk.fetch_next_group(group);
#pragma unroll
        for (int i = 0; i < kGroupRows; ++i) amax = fmaxf(amax, fabsf(r[i]));
      }
    }
    p.v_tile_amax[at.index * std::int64_t{kWidth} + threadIdx.x] = amax;
    if (dropped != nullptr && threadIdx.x == 0) p.nonfinite[at.head_index] = 1;
    if (threadIdx.x < kMaskWords) {
      p.v_dropped[at.index * std::int64_t{kMaskWords} + threadIdx.x] = dropped != nullptr ? dropped[threadIdx.x] : 0;
    }
  }
}

/// 16 keys of a channel as codes in the order of their slots, and what these stand for, in the order of the keys and in units of the
/// descale.
template <CodeFormat kFormat>
struct CodedKeys;

template <>
struct CodedKeys<CodeFormat::e4m3> {
  static constexpr int kWords = 4;
  std::uint32_t words[kWords];
  float decoded[kGroupRows];

  __device__ __forceinline__ CodedKeys(float const (&r)[kGroupRows], float inverse) {
#pragma unroll
    for (int t = 0; t < kWords; ++t) {  // slots 4 t .. 4 t + 3 [EQ-KEY-SLOT]
      std::uint32_t const low = ptx::pack_e4m3x2(r[2 * t] * inverse, r[2 * t + 1] * inverse);
      std::uint32_t const high = ptx::pack_e4m3x2(r[2 * t + 8] * inverse, r[2 * t + 9] * inverse);
      words[t] = low | high << 16;
      decoded[2 * t] = ptx::low_float(ptx::unpack_e4m3x2(low));
      decoded[2 * t + 1] = ptx::high_float(ptx::unpack_e4m3x2(low));
      decoded[2 * t + 8] = ptx::low_float(ptx::unpack_e4m3x2(high));
      decoded[2 * t + 9] = ptx::high_float(ptx::unpack_e4m3x2(high));
    }
  }
};

template <>
struct CodedKeys<CodeFormat::nvfp4> {
  static constexpr int kWords = 2;
  std::uint32_t words[kWords];
  float decoded[kGroupRows];
  std::uint32_t scale_factor;  // UE4M3

  __device__ __forceinline__ CodedKeys(float const (&r)[kGroupRows], float inverse) {  // [EQ-NVFP4-V]
    float x[kGroupRows];
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) {
      x[i] = r[i] * inverse;
      amax = fmaxf(amax, fabsf(x[i]));
    }
    ScaleFactor const sf = ScaleFactor::of(amax);
    scale_factor = sf.code;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      float y[8];
      core::E2m1Magnitude magnitude[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        int const key = formats::key_of_slot(8 * w + i);
        y[i] = x[key] * sf.inverse;
        magnitude[i] = core::e2m1_magnitude(y[i]);
        decoded[key] = copysignf(magnitude[i].value, y[i]) * sf.value;
      }
      words[w] = pack_e2m1x8(y, magnitude);
    }
  }
};

/// Second sweep over V: codes; block means with what rounding left over, and what FP16 loses of them.
template <DType kType, int kWidth, CodeFormat kFormat>
__global__ void __launch_bounds__(kWidth, column_ctas<kType>(kWidth)) value_columns_kernel(__grid_constant__ KernelParams const p) {
  using Walk = ColumnWalk<kType, kWidth, true>;
  using Keys = CodedKeys<kFormat>;
  constexpr int kWordsPerChannel = Keys::kWords * static_cast<int>(kTileRows) / kGroupRows;
  extern __shared__ uint4 memory[];
  RopeTables const no_rope{};
  int const block_rows = static_cast<int>(kTileRows) / p.v_blocks;
  for (Walk walk(p, p.v, no_rope, *reinterpret_cast<typename Walk::Smem*>(memory)); walk.tiles.more(); walk.step()) {
    TilePlace const& at = walk.tiles.at;
    std::uint32_t const* const mask = p.v_dropped + at.index * std::int64_t{kMaskWords};
    auto const bits = *reinterpret_cast<uint4 const*>(mask);
    std::uint32_t const* const dropped = (bits.x | bits.y | bits.z | bits.w) != 0 ? mask : nullptr;
    std::int64_t const tile_channel = at.index * std::int64_t{kWidth} + threadIdx.x;
    std::int64_t const head_channel = at.head_index * std::int64_t{kWidth} + threadIdx.x;
    std::int64_t const first_mean = at.index * std::int64_t{p.v_blocks} * kWidth + threadIdx.x;
    float const inverse = p.v_inverse[head_channel];
    float const descale = p.v_descale[head_channel];
    float const global_mean = p.v_mean_on != 0 ? p.v_global_mean[head_channel] : 0.0f;
    float sum = p.v_mean_on != 0 ? p.v_block_sums[first_mean] : 0.0f;
    auto* const codes = reinterpret_cast<uint4*>(p.v_codes) + tile_channel * (kWordsPerChannel / 4);
    float lost = 0.0f;
    std::uint64_t scale_factors = 0;  // byte g: that of group g
    walk.arrive();
    for (int b = 0; b < p.v_blocks; ++b) {
      int const valid = valid_rows(at, block_rows, b);
      float const mean = sum / static_cast<float>(max(valid, 1));
      if (b + 1 < p.v_blocks) sum = p.v_block_sums[first_mean + (b + 1) * kWidth];
      float error[core::kRowPartials] = {};
      int const first_group = b * block_rows / kGroupRows;
#pragma unroll 1
      for (int pair = 0; pair < block_rows / kGroupRows; pair += 2) {
        std::uint32_t words[2 * Keys::kWords];
#pragma unroll
        for (int g = 0; g < 2; ++g) {
          int const group = first_group + pair + g;
          float r[kGroupRows];
          load_residuals(walk, dropped, group, mean, r);
          walk.fetch_next_group(group);
          Keys const keys(r, inverse);
#pragma unroll
          for (int w = 0; w < Keys::kWords; ++w) words[g * Keys::kWords + w] = keys.words[w];
          if constexpr (kFormat == CodeFormat::nvfp4) scale_factors |= std::uint64_t{keys.scale_factor} << 8 * group;
          if (p.emc == 0) continue;
#pragma unroll
          for (int i = 0; i < kGroupRows; ++i) error[i % core::kRowPartials] += r[i] - keys.decoded[i] * descale;  // [EQ-EMC]
        }
#pragma unroll
        for (int v = 0; v < Keys::kWords / 2; ++v) {
          codes[(first_group + pair) * Keys::kWords / 4 + v] =
              make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]);
        }
      }
      if (p.v_mean_on == 0) continue;
      float about_global = 0.0f;
      if (valid > 0) {
        float const mean_error = p.emc != 0 ? sum_of_partials(error) / static_cast<float>(valid) : 0.0f;
        about_global = (mean - global_mean) + mean_error;
      }
      float const in_descales = about_global * inverse;
      // A mean beyond FP32 marks its own head through the global mean; as a number here it would reach the next head of a kernel's window.
      std::uint16_t const code = core::is_finite(in_descales) ? core::fp16_encode(in_descales) : std::uint16_t{0};
      p.v_mean[first_mean + b * kWidth] = code;
      lost = core::fma_f32(static_cast<float>(valid), core::fma_f32(-core::fp16_decode(code), descale, about_global), lost);
    }
    if constexpr (kFormat == CodeFormat::nvfp4) {
      *reinterpret_cast<uint2*>(p.v_scale_factors + tile_channel * 8) =
          make_uint2(static_cast<std::uint32_t>(scale_factors), static_cast<std::uint32_t>(scale_factors >> 32));
    }
    if (p.emc != 0) p.v_tile_sums[tile_channel] = lost;
  }
}

}  // namespace vcattn::preparation::cuda
