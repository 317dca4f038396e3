#pragma once

// Error-shaped rounding of Q and K. [EQ-SHAPED]

#include <type_traits>

#include "device/ptx/mma.cuh"
#include "device/ptx/packed.cuh"
#include "formats/codes.hpp"
#include "prepare/cuda/nvfp4.cuh"
#include "prepare/cuda/row.cuh"
#include "prepare/shaping.hpp"

namespace vcattn::preparation::cuda {

using formats::CodeFormat;

/// Rows of a warp in codes, kRowBytes bytes each, kRunBytes of eight channels, in swizzled chunks of 16 bytes: on their way from the
/// threads that hold them to memory.
template <int kRowBytes, int kRunBytes, int kThreads>
struct WarpBytes {
  static constexpr int kRows = kLanes / kThreads;
  static constexpr int kChunks = kRowBytes / 16;
  uint4 rows[kRows][kChunks];

  __device__ __forceinline__ uint4& chunk(int row, int c) { return rows[row][swizzled<kChunks>(row, c)]; }

  /// Stores all rows to memory [kRows][kRowBytes], in whole cache lines. words: what the calling thread holds of its row, run by run.
  template <int kWords>
  __device__ __forceinline__ void store(std::uint32_t const (&words)[kWords], std::byte* to) {
    static_assert(kWords == kRowBytes / kThreads / 4);
    int const lane = static_cast<int>(threadIdx.x) % kLanes;
    int const row = lane / kThreads;
    __syncwarp();
    if constexpr (kThreads == 1) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) chunk(row, c) = make_uint4(words[4 * c], words[4 * c + 1], words[4 * c + 2], words[4 * c + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < kRowBytes / kRunBytes / kThreads; ++i) {
        int const byte = (i * kThreads + lane % kThreads) * kRunBytes;
        auto* const run = reinterpret_cast<std::uint32_t*>(&chunk(row, byte / 16)) + byte % 16 / 4;
        if constexpr (kRunBytes == 8) {
          *reinterpret_cast<uint2*>(run) = make_uint2(words[2 * i], words[2 * i + 1]);
        } else {
          *run = words[i];
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kLanes; ++i) {
      int const index = i * kLanes + lane;
      __stcs(reinterpret_cast<uint4*>(to) + index, chunk(index / kChunks, index % kChunks));
    }
  }
};

/// Feedback of a KV head, as feedback_kernel writes it.
template <int kWidth>
struct FeedbackTables {
  static constexpr int kBlocks = kWidth / kShapedBlock;
  float within[kBlocks][kShapedBlock][kShapedBlock];  // W from a channel of a block to one of it
  float descale[kWidth];                              // of a column's integers, over kErrorSteps
  std::int8_t integers[kWidth][kWidth];               // [to][from], zeros from the own block on
};

/// Feedback, and what the threads of a warp exchange: steps of errors of their rows, and the sums of these that reach a block of channels.
template <int kWidth, int kWarps>
struct ShapingSmem {
  static constexpr int kBlocks = kWidth / kShapedBlock;
  static constexpr int kSumChunks = kShapedBlock / 4;
  float within[kBlocks][kShapedBlock][kShapedBlock];
  float descale[kWidth];
  uint4 integers[kWidth][kBlocks];  // [to], swizzled chunks of 16 channels
  WarpBytes<kWidth, 8, 1> steps[kWarps];
  uint4 sums[kWarps][kLanes][kSumChunks];

  /// By all threads of the CTA.
  __device__ __forceinline__ void load(std::byte const* tables) {
    auto const& from = *reinterpret_cast<FeedbackTables<kWidth> const*>(tables);
    int const threads = static_cast<int>(blockDim.x);
    for (int i = static_cast<int>(threadIdx.x); i < kWidth * kShapedBlock; i += threads) (&within[0][0][0])[i] = (&from.within[0][0][0])[i];
    for (int i = static_cast<int>(threadIdx.x); i < kWidth; i += threads) descale[i] = from.descale[i];
    for (int i = static_cast<int>(threadIdx.x); i < kWidth * kBlocks; i += threads) {
      int const to = i / kBlocks;
      integers[to][swizzled<kBlocks>(to, i % kBlocks)] = reinterpret_cast<uint4 const*>(from.integers)[i];
    }
  }

  /// Sums over the channels of blocks before kBlock of steps times integers, for the 16 channels of that block, in the threads that hold
  /// the rows.
  template <int kBlock>
  __device__ __forceinline__ void sums_of_block(float (&result)[kShapedBlock]) {
    constexpr int kBias = 0x4B400000;  // as a float, 1.5 * 2^23 + sum has the bits of this + sum
    int const lane = static_cast<int>(threadIdx.x) % kLanes;
    int const warp = static_cast<int>(threadIdx.x) / kLanes;
    auto& warp_sums = sums[warp];
    int const matrix_row = lane % 8;
    int const matrix = lane / 8;
    std::int32_t d[2][2][4];
#pragma unroll
    for (auto& tiles : d) {
#pragma unroll
      for (auto& tile : tiles) tile[0] = tile[1] = tile[2] = tile[3] = kBias;
    }
#pragma unroll
    for (int k = 0; k < (kBlock + 1) / 2; ++k) {  // 32 channels: two chunks
      int const to = kShapedBlock * kBlock + 8 * (matrix / 2) + matrix_row;
      uint4 const b = ptx::load_matrices(&integers[to][swizzled<kBlocks>(to, 2 * k + matrix % 2)]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        int const row = 16 * m + 8 * (matrix % 2) + matrix_row;
        uint4 const a = ptx::load_matrices(&steps[warp].chunk(row, 2 * k + matrix / 2));
        ptx::mma_s8(d[m][0], a, b.x, b.y);
        ptx::mma_s8(d[m][1], a, b.z, b.w);
      }
    }
    int const g = lane / 4;
    int const t = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int const row = 16 * m + 8 * half + g;
          auto* const pair = reinterpret_cast<int2*>(&warp_sums[row][swizzled<kSumChunks>(row, 2 * n + t / 2)]) + t % 2;
          *pair = make_int2(d[m][n][2 * half], d[m][n][2 * half + 1]);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kSumChunks; ++c) {
      uint4 const four = warp_sums[lane][swizzled<kSumChunks>(lane, c)];
      std::uint32_t const bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) result[4 * c + i] = core::f32_from_bits(bits[i]) - core::kRoundMagic;
    }
  }
};

template <int kWidth>
struct ShapingSmem<kWidth, 0> {};

/// Rounds to the nearest code. factor, inverse: of the scale factor that NVFP4 has.
template <CodeFormat kFormat>
struct Rounding {
  float limit, factor, inverse;

  /// The code in the low bits, those above are of no meaning.
  __device__ __forceinline__ std::uint32_t code(float target, float* value) const {
    if constexpr (kFormat == CodeFormat::nvfp4) {
      float const x = inverse == 0.0f ? 0.0f : target * inverse;  // no sign where the scale factor is 0
      core::E2m1Magnitude const magnitude = core::e2m1_magnitude(x);
      *value = copysignf(magnitude.value, x) * factor;
      return (magnitude.code & 7u) | (core::f32_bits(x) >> 28 & 8u);
    } else {
      float const clamped = fminf(fmaxf(target, -limit), limit);
      if constexpr (kFormat == CodeFormat::int8) {
        float const biased = clamped + core::kRoundMagic;
        *value = biased - core::kRoundMagic;
        return core::f32_bits(biased);
      } else {
        std::uint32_t const code = ptx::pack_e4m3x2(clamped, 0.0f);
        *value = ptx::low_float(ptx::unpack_e4m3x2(code));
        return code;
      }
    }
  }
};

/// The low byte of `from` becomes byte `index` of a word, which is new at index 0.
__device__ __forceinline__ void insert_byte(std::uint32_t& word, int index, std::uint32_t from) {
  word = index == 0 ? from & 0xFFu : __byte_perm(word, from, index == 1 ? 0x3240 : index == 2 ? 0x3410 : 0x4210);
}

/// Rounds a row (code units) with feedback; leaves the values of the codes. All of the warp take part. factors: NVFP4 only, of 16 channels
/// each.
template <CodeFormat kFormat, int kWidth, int kWarps, int kWords>
__device__ __forceinline__ void shape(Row<kWidth, 1>& row, float limit, ScaleFactor const (&factors)[kWidth / kShapedBlock],
                                      ShapingSmem<kWidth, kWarps>& smem, std::uint32_t (&words)[kWords]) {
  constexpr int kBlocks = kWidth / kShapedBlock;
  constexpr bool kNvfp4 = kFormat == CodeFormat::nvfp4;
  int const lane = static_cast<int>(threadIdx.x) % kLanes;
  auto& steps = smem.steps[static_cast<int>(threadIdx.x) / kLanes];
  float unit = 1.0f;  // errors are counted in kErrorSteps-ths of it
  if constexpr (kNvfp4) {
    unit = 0.0f;
#pragma unroll
    for (ScaleFactor const& factor : factors) unit = fmaxf(unit, factor.value);
  }
  float const steps_per_unit = kNvfp4 && unit == 0.0f ? 0.0f : kErrorSteps / unit;
  auto const round_block = [&](auto block) {
    constexpr int kBlock = decltype(block)::value;
    float* const target = row.x + kShapedBlock * kBlock;
    if constexpr (kBlock > 0) {
      float sums[kShapedBlock];
      smem.template sums_of_block<kBlock>(sums);
#pragma unroll
      for (int f = 0; f < kShapedBlock; ++f) {
        float const descale = smem.descale[kShapedBlock * kBlock + f];
        target[f] = core::fma_f32(kNvfp4 ? descale * unit : descale, sums[f], target[f]);
      }
    }
    Rounding<kFormat> const rounding{limit, kNvfp4 ? factors[kBlock].value : 1.0f, kNvfp4 ? factors[kBlock].inverse : 1.0f};
    std::uint32_t step_words[kShapedBlock / 4];
#pragma unroll
    for (int d = 0; d < kShapedBlock; ++d) {
      float value;
      std::uint32_t const code = rounding.code(target[d], &value);
      float const error = value - target[d];
      target[d] = value;
      float const step = fminf(fmaxf(error * steps_per_unit, -formats::kInt8Max), formats::kInt8Max);
      insert_byte(step_words[d / 4], d % 4, core::f32_bits(step + core::kRoundMagic));
      int const channel = kShapedBlock * kBlock + d;
      if constexpr (kNvfp4) {
        words[channel / 8] = d % 8 == 0 ? code : words[channel / 8] | code << 4 * (d % 8);
      } else {
        insert_byte(words[channel / 4], d % 4, code);
      }
#pragma unroll
      for (int f = d + 1; f < kShapedBlock; ++f) target[f] = core::fma_f32(error, smem.within[kBlock][d][f], target[f]);
    }
    if constexpr (kBlock + 1 < kBlocks) {
      steps.chunk(lane, kBlock) = make_uint4(step_words[0], step_words[1], step_words[2], step_words[3]);
      __syncwarp();
    }
  };
  [&]<int... kBlock>(std::integer_sequence<int, kBlock...>) { (round_block(std::integral_constant<int, kBlock>{}), ...); }
  (std::make_integer_sequence<int, kBlocks>{});
}

}  // namespace vcattn::preparation::cuda
