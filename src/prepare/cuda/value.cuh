#pragma once

// Column sums of K; V: block means and amax, descales, codes. One CTA a tile of 128 rows, as many threads as channels.

#include "core/half.hpp"
#include "device/ptx/packed.cuh"
#include "formats/codes.hpp"
#include "prepare/cuda/column_tile.cuh"

namespace vcattn::preparation::cuda {

using formats::CodeFormat;
using formats::kTileRows;

/// |mu0 / v_descale| stays inside FP16. [EQ-VDESCALE]
inline constexpr float kMeanQuotientMax = 32768.0f;
inline constexpr float kDescaleFloor = 0x1p-110f;

/// Sums of the rows of every K tile, in the caller's order. [EQ-KMEAN]
template <DType kType, int kWidth>
__global__ void __launch_bounds__(kWidth, column_ctas<kType>(kWidth)) key_sums_kernel(__grid_constant__ KernelParams const p) {
  using Walk = ColumnWalk<kType, kWidth, false>;
  extern __shared__ uint4 memory[];
  for (Walk walk(p, p.k.tensor, p.rope, *reinterpret_cast<typename Walk::Smem*>(memory)); walk.tiles.more(); walk.step()) {
    walk.arrive();
    TilePlace const& at = walk.tiles.at;
    std::uint32_t const* dropped;
    Channels const sum = walk.sums(&dropped);
#pragma unroll 4
    for (int s = 0; s < kRowsPerThread; ++s) walk.fetch_next(s);
    if (dropped != nullptr && threadIdx.x == 0) p.nonfinite[at.head_index] = 1;
    if (walk.leads()) sum.store(p.k_tile_sums + at.index * std::int64_t{kWidth} + walk.channel());
  }
}

/// The head and the 32 channels of a CTA that sums over tiles, and the head's tiles.
struct HeadPlace {
  std::int64_t head_index, first_tile, tiles, keys;
  std::int64_t channel;  // this thread's, as index of [heads][width]
  int first_channel;

  __device__ __forceinline__ static HeadPlace of_cta(KernelParams const& p, int width) {
    HeadPlace at;
    at.head_index = blockIdx.x;
    auto const& s = p.sequences[at.head_index / p.num_heads_kv];
    at.tiles = s.tiles_kv;
    at.keys = s.seqlen_kv;
    at.first_tile = p.num_heads_kv * s.tile_begin_kv + at.head_index % p.num_heads_kv * s.tiles_kv;
    at.first_channel = static_cast<int>(blockIdx.y) * 32;
    at.channel = at.head_index * width + at.first_channel + threadIdx.x % 32;
    return at;
  }
  /// First value of the CTA in rows [T][width].
  __device__ __forceinline__ float const* tile_values(float const* values, int width) const {
    return values + first_tile * width + first_channel;
  }
};

__global__ void __launch_bounds__(kTileSumThreads) key_means_kernel(__grid_constant__ KernelParams const p, int width) {
  __shared__ float partials[core::kTilePartials][32];
  HeadPlace const at = HeadPlace::of_cta(p, width);
  float const sum = sum_over_tiles(at.tile_values(p.k_tile_sums, width), at.tiles, width, partials);
  if (threadIdx.x < 32) p.k_mean[at.channel] = at.keys > 0 ? sum / static_cast<float>(at.keys) : 0.0f;
}

/// R = V - m of one row. [EQ-VSMOOTH]
template <DType kType>
__device__ __forceinline__ Channels residual(PackedChannels<kType> const& packed, bool valid, Channels const& mean) {
  Channels x;
  packed.decode(x.x);
  if (valid) x = per_channel([&](int c) { return x[c] - mean[c]; });
  return x;
}

/// First sweep over V: sums and largest residuals of every sorted tile, rows that do not count.
template <DType kType, int kWidth>
__global__ void __launch_bounds__(kWidth, column_ctas<kType>(kWidth)) value_stats_kernel(__grid_constant__ KernelParams const p) {
  using Walk = ColumnWalk<kType, kWidth, true>;
  extern __shared__ uint4 memory[];
  RopeTables const no_rope{};
  for (Walk walk(p, p.v, no_rope, *reinterpret_cast<typename Walk::Smem*>(memory)); walk.tiles.more(); walk.step()) {
    walk.arrive();
    TilePlace const& at = walk.tiles.at;
    std::uint32_t const* dropped;
    Channels const sum = walk.sums(&dropped);
    Channels const mean = p.v_mean_on != 0 ? mean_of(sum, at.count()) : Channels::filled(0.0f);
    Channels amax = Channels::filled(0.0f);
#pragma unroll 4
    for (int s = 0; s < kRowsPerThread; ++s) {
      Channels const r = residual(walk.packed(s, dropped), walk.valid(s), mean);
      walk.fetch_next(s);
      amax = per_channel([&](int c) { return fmaxf(amax[c], fabsf(r[c])); });
    }
    over_partials(amax, [](float a, float b) { return fmaxf(a, b); });

    std::int64_t const element = at.index * std::int64_t{kWidth} + walk.channel();
    if (walk.leads()) {
      sum.store(p.v_tile_sums + element);
      amax.store(p.v_tile_amax + element);
    }
    if (dropped != nullptr && threadIdx.x == 0) p.nonfinite[at.head_index] = 1;
    if (threadIdx.x < kMaskWords) {
      p.v_dropped[at.index * std::int64_t{kMaskWords} + threadIdx.x] = dropped != nullptr ? dropped[threadIdx.x] : 0;
    }
  }
}

/// Global mean of V and what the descales need, from the tiles and blocks of a head.
__global__ void __launch_bounds__(kTileSumThreads) value_means_kernel(__grid_constant__ KernelParams const p, int width) {
  __shared__ float partials[core::kTilePartials][32];
  __shared__ float means[32];
  HeadPlace const at = HeadPlace::of_cta(p, width);
  int const lane = static_cast<int>(threadIdx.x) % 32;
  float const* const amax = at.tile_values(p.v_tile_amax, width) + lane;
  float const residual_amax = max_over_tiles(at.tiles, partials, [&](std::int64_t j) { return amax[j * width]; });
  float mean_amax = 0.0f;
  if (p.v_mean_on != 0) {
    float const* const sums = at.tile_values(p.v_tile_sums, width);
    float const sum = sum_over_tiles(sums, at.tiles, width, partials);
    if (threadIdx.x < 32) {
      means[lane] = at.keys > 0 ? sum / static_cast<float>(at.keys) : 0.0f;
      p.v_global_mean[at.channel] = means[lane];
    }
    __syncthreads();
    float const* const block_sums = p.v_block_sums + at.first_tile * p.v_blocks * width + at.first_channel + lane;
    int const block = static_cast<int>(kTileRows) / p.v_blocks;
    int const keys = static_cast<int>(at.keys);
    float const inverse = 1.0f / static_cast<float>(block);  // of a power of two: no division for whole blocks
    mean_amax = max_over_tiles((keys + block - 1) / block, partials, [&](std::int64_t b) {
      float const sum = block_sums[b * width];
      int const left = keys - static_cast<int>(b) * block;
      return fabsf((left >= block ? sum * inverse : sum / static_cast<float>(left)) - means[lane]);
    });
  }
  if (threadIdx.x >= 32) return;
  p.v_residual_amax[at.channel] = residual_amax;
  p.v_mean_amax[at.channel] = mean_amax;
}

/// [EQ-VDESCALE] One CTA a head, one thread a channel.
__global__ void value_descales_kernel(__grid_constant__ KernelParams const p) {
  __shared__ std::uint32_t largest_residual, largest_mean;
  std::int64_t const channel = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  float residual_amax = p.v_residual_amax[channel];
  float mean_amax = p.v_mean_amax[channel];
  if (p.v_per_channel == 0) {
    if (threadIdx.x == 0) largest_residual = largest_mean = 0;
    __syncthreads();
    atomicMax(&largest_residual, __float_as_uint(residual_amax));
    atomicMax(&largest_mean, __float_as_uint(mean_amax));
    __syncthreads();
    residual_amax = __uint_as_float(largest_residual);
    mean_amax = __uint_as_float(largest_mean);
  }
  float const needed = core::max_f32(residual_amax / p.v_code_max, mean_amax / kMeanQuotientMax);
  float const descale = needed < kDescaleFloor ? 1.0f : needed;
  p.v_descale[channel] = descale;
  p.v_inverse[channel] = 1.0f / descale;
}

/// Codes of a tile on their way to memory, [channel][128 slots]. A chunk of 16 slots lies where neither the stores by word nor the loads by
/// chunk meet in a bank.
template <int kWidth>
struct CodeTile {
  std::uint32_t words[kWidth][kTileRows / 4];

  __device__ __forceinline__ static int chunk(int channel, int group) { return group ^ (channel / 4 % 8); }
  __device__ __forceinline__ std::uint32_t& word(int channel, int group, int t) { return words[channel][4 * chunk(channel, group) + t]; }

  /// The whole tile, by all threads.
  __device__ __forceinline__ void store(std::byte* to) const {
    constexpr int kChunks = kTileRows / 16;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      int const index = i * kWidth + static_cast<int>(threadIdx.x);
      int const channel = index / kChunks;
      __stcs(reinterpret_cast<uint4*>(to) + index, *reinterpret_cast<uint4 const*>(words[channel] + 4 * chunk(channel, index % kChunks)));
    }
  }
};

/// Codes of a thread's rows k and k + 8 of a group of 16, per channel: row k in the low byte.
struct CodePairs {
  std::uint32_t two_channels[kChannelsPerLoad / 2];  // the even channel in the low half
};

/// Threads k and k + 1 hold keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a group, t = k / 2: slots 4 t .. 4 t + 3 [EQ-KEY-SLOT]. The even one
/// assembles them for the first four of its channels, the odd one for the others.
template <int kWidth>
__device__ __forceinline__ void store_pairs(CodeTile<kWidth>& tile, CodePairs const& own, int channel, int group, int k) {
  bool const odd = k % 2 != 0;
  unsigned const even_channel = odd ? 0x1504 : 0x5140;
  unsigned const odd_channel = odd ? 0x3726 : 0x7362;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t const kept = odd ? own.two_channels[2 + i] : own.two_channels[i];
    std::uint32_t const given = odd ? own.two_channels[i] : own.two_channels[2 + i];
    std::uint32_t const taken = __shfl_xor_sync(kAllLanes, given, kThreadsPerRow);
    int const first = channel + (odd ? 4 : 0) + 2 * i;
    tile.word(first, group, k / 2) = __byte_perm(kept, taken, even_channel);
    tile.word(first + 1, group, k / 2) = __byte_perm(kept, taken, odd_channel);
  }
}

template <DType kType, int kWidth>
struct ValueSmem {
  CodeTile<kWidth> codes;
  typename ColumnWalk<kType, kWidth, true>::Smem walk;
};

/// Second sweep over V: codes; block means with what rounding left over, and what FP16 loses of them.
template <DType kType, int kWidth>
__global__ void __launch_bounds__(kWidth, column_ctas<kType>(kWidth)) value_codes_kernel(__grid_constant__ KernelParams const p) {
  using Walk = ColumnWalk<kType, kWidth, true>;
  extern __shared__ uint4 memory[];
  auto& smem = *reinterpret_cast<ValueSmem<kType, kWidth>*>(memory);
  RopeTables const no_rope{};
  for (Walk walk(p, p.v, no_rope, smem.walk); walk.tiles.more(); walk.step()) {
    TilePlace const& at = walk.tiles.at;
    std::uint32_t const* const mask = p.v_dropped + at.index * std::int64_t{kMaskWords};
    auto const bits = *reinterpret_cast<uint4 const*>(mask);
    std::uint32_t const* const dropped = (bits.x | bits.y | bits.z | bits.w) != 0 ? mask : nullptr;
    std::int64_t const tile_element = at.index * std::int64_t{kWidth} + walk.channel();
    std::int64_t const head_element = at.head_index * std::int64_t{kWidth} + walk.channel();
    Channels mean = Channels::filled(0.0f);
    if (p.v_mean_on != 0) mean = mean_of(Channels::load(p.v_tile_sums + tile_element), at.count());
    Channels const inverse = Channels::load(p.v_inverse + head_element);
    Channels const descale = Channels::load(p.v_descale + head_element);
    Channels error = Channels::filled(0.0f);
    walk.arrive();
#pragma unroll 2
    for (int group = 0; group < kRowsPerThread / 2; ++group) {
      Channels const low = residual(walk.packed(2 * group, dropped), walk.valid(2 * group), mean);
      Channels const high = residual(walk.packed(2 * group + 1, dropped), walk.valid(2 * group + 1), mean);
      walk.fetch_next(2 * group);
      walk.fetch_next(2 * group + 1);
      std::uint32_t pairs[kChannelsPerLoad];
#pragma unroll
      for (int c = 0; c < kChannelsPerLoad; ++c) {
        pairs[c] = ptx::pack_e4m3x2(low[c] * inverse[c], high[c] * inverse[c]);
        ptx::Half2 const decoded = ptx::unpack_e4m3x2(pairs[c]);  // [EQ-EMC]
        error[c] += low[c] - ptx::low_float(decoded) * descale[c];
        error[c] += high[c] - ptx::high_float(decoded) * descale[c];
      }
      CodePairs own;
#pragma unroll
      for (int i = 0; i < kChannelsPerLoad / 2; ++i) own.two_channels[i] = pairs[2 * i] | pairs[2 * i + 1] << 16;
      store_pairs(smem.codes, own, walk.channel(), group, walk.partial());
    }
    __syncthreads();
    smem.codes.store(p.v_codes + at.index * kTileRows * kWidth);
    if (p.v_mean_on == 0) continue;

    over_partials(error, [](float a, float b) { return a + b; });
    if (!walk.leads()) continue;
    Channels mean_error = Channels::filled(0.0f);
    if (p.emc != 0) mean_error = mean_of(error, at.count());
    Channels const global_mean = Channels::load(p.v_global_mean + head_element);
    Channels lost;
    std::uint32_t stored[kChannelsPerLoad / 2];
#pragma unroll
    for (int c = 0; c < kChannelsPerLoad; ++c) {
      float const about_global = (mean[c] - global_mean[c]) + mean_error[c];
      float const in_descales = about_global * inverse[c];
      // A mean beyond FP32 marks its own head through the global mean; as a number here it would reach the next head of a kernel's window.
      std::uint16_t const code = core::is_finite(in_descales) ? core::fp16_encode(in_descales) : std::uint16_t{0};
      stored[c / 2] = c % 2 == 0 ? code : stored[c / 2] | static_cast<std::uint32_t>(code) << 16;
      float const lost_by_fp16 = core::fma_f32(-core::fp16_decode(code), descale[c], about_global);
      lost[c] = core::fma_f32(static_cast<float>(at.count()), lost_by_fp16, 0.0f);
    }
    *reinterpret_cast<uint4*>(p.v_mean + tile_element) = make_uint4(stored[0], stored[1], stored[2], stored[3]);
    if (p.emc != 0) lost.store(p.v_tile_sums + tile_element);
  }
}

/// [EQ-EMC] What is added to O makes up for the stored block means.
__global__ void __launch_bounds__(kTileSumThreads) value_lost_kernel(__grid_constant__ KernelParams const p, int width) {
  __shared__ float partials[core::kTilePartials][32];
  HeadPlace const at = HeadPlace::of_cta(p, width);
  float const sum = sum_over_tiles(at.tile_values(p.v_tile_sums, width), at.tiles, width, partials);
  if (threadIdx.x < 32 && at.keys > 0) p.v_global_mean[at.channel] += sum / static_cast<float>(at.keys);
}

}  // namespace vcattn::preparation::cuda
