#pragma once

// A tile of 128 rows seen as columns: means over rows. Warp w owns channels 32 w .. 32 w + 31 of every row; thread (k, q) of it, k = lane /
// 4, owns channels 8 q .. 8 q + 7 of these in rows k, k + 8, ...: one partial of [EQ-FIXED-ORDER], whose tree is a butterfly over the warp.

#include <cstdint>

#include "core/fixed_order.hpp"
#include "prepare/cuda/packed_channels.cuh"

namespace vcattn::preparation::cuda {

inline constexpr int kThreadsPerRow = 4;
inline constexpr int kChannelStep = kThreadsPerRow * kChannelsPerLoad;  // of a warp
inline constexpr int kRowsPerThread = static_cast<int>(formats::kTileRows) / core::kRowPartials;
inline constexpr int kMaskWords = static_cast<int>(formats::kTileRows) / 32;

static_assert(core::kRowPartials == 32 / kThreadsPerRow);

/// Eight values, one a channel.
struct Channels {
  float x[kChannelsPerLoad];

  __device__ __forceinline__ float& operator[](int c) { return x[c]; }
  __device__ __forceinline__ float operator[](int c) const { return x[c]; }

  __device__ __forceinline__ static Channels filled(float value) {
    Channels y;
#pragma unroll
    for (float& element : y.x) element = value;
    return y;
  }
  __device__ __forceinline__ static Channels load(float const* from) {
    Channels y;
    load_floats(from, y.x);
    return y;
  }
  __device__ __forceinline__ void store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
};

/// result[c] = body(c).
template <typename Body>
__device__ __forceinline__ Channels per_channel(Body const& body) {
  Channels y;
#pragma unroll
  for (int c = 0; c < kChannelsPerLoad; ++c) y[c] = body(c);
  return y;
}

/// Combines the eight partials of a column, strides 4, 2, 1; every thread gets the result.
template <typename Combine>
__device__ __forceinline__ void over_partials(Channels& partial, Combine const& combine) {
#pragma unroll
  for (int stride = core::kRowPartials / 2; stride >= 1; stride /= 2) {
#pragma unroll
    for (int c = 0; c < kChannelsPerLoad; ++c) {
      partial[c] = combine(partial[c], __shfl_xor_sync(kAllLanes, partial[c], stride * kThreadsPerRow));
    }
  }
}
/// sum / count; 128 rows are the usual case, and a power of two needs no division.
__device__ __forceinline__ Channels mean_of(Channels const& sum, int count) {
  if (count == formats::kTileRows) return per_channel([&](int c) { return sum[c] * 0x1p-7f; });
  return per_channel([&](int c) { return sum[c] / static_cast<float>(count); });
}

/// CTAs of a kernel on columns that a multiprocessor holds: 512 threads, 256 of those that stage their rows as FP32.
template <DType kType>
constexpr int column_ctas(int width) {
  return (kType == DType::f32 ? 256 : 512) / width;
}

/// The tiles of a CTA of kWidth threads, fetched one tile ahead. kSorted: rows as the permutation has them.
///     for (walk(...); walk.tiles.more(); walk.step()) { walk.arrive(); ... every step s: walk.packed(s), then walk.fetch_next(s) once ...
///     }
template <DType kType, int kWidth, bool kSorted>
class ColumnWalk {
 public:
  using Packed = PackedChannels<kType>;
  struct Smem {
    Stage<kType, kRowsPerThread, kWidth> stage;
    std::int32_t list[2][kSorted ? formats::kTileRows : 1];  // of two tiles, by the parity of their index
    std::uint32_t dropped[kMaskWords];
  };

  TileWalk<Role::key> tiles;

  __device__ __forceinline__ ColumnWalk(KernelParams const& p, Tensor const& tensor, RopeTables const& rope, Smem& smem)
      : tiles(p, tensor), p_(p), tensor_(tensor), rope_(rope), smem_(smem) {
    if (!tiles.more()) return;
    fetch_list(tiles.at);
    smem_.stage.wait();
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kRowsPerThread; ++s) fetch(tiles.at, s);
    if (tiles.has_next()) fetch_list(tiles.next);
  }

  __device__ __forceinline__ static int partial() { return static_cast<int>(threadIdx.x) % 32 / kThreadsPerRow; }
  __device__ __forceinline__ static int row(int step) { return partial() + core::kRowPartials * step; }
  __device__ __forceinline__ static int channel() {
    return static_cast<int>(threadIdx.x) / 32 * kChannelStep + static_cast<int>(threadIdx.x) % kThreadsPerRow * kChannelsPerLoad;
  }
  /// One of the eight threads that own the same channels.
  __device__ __forceinline__ static bool leads() { return partial() == 0; }
  __device__ __forceinline__ bool valid(int step) const { return row(step) < tiles.at.count(); }

  /// The tile is there, and the list of the next one.
  __device__ __forceinline__ void arrive() {
    smem_.stage.wait();
    if (kSorted) __syncthreads();
  }

  /// The thread's channels of a row; zeros where the row is not valid or one that `dropped` (nullptr: none) names.
  __device__ __forceinline__ Packed packed(int step, std::uint32_t const* dropped) const {
    Packed const x = smem_.stage.read(step);
    return dropped != nullptr && (dropped[row(step) / 32] >> row(step) % 32 & 1u) != 0 ? Packed::zero() : x;
  }
  /// Behind the last tile zeros are fetched: no branch.
  __device__ __forceinline__ void fetch_next(int step) { fetch(tiles.next, step); }

  /// Channel threadIdx.x of row 16 group + i, 0 <= i < 16, which the thread's warp has fetched; 0 where packed() would give zeros.
  __device__ __forceinline__ float column(int group, int i, std::uint32_t const* dropped) const {
    if (dropped != nullptr && (dropped[group / 2] >> (group % 2 * 16 + i) & 1u) != 0) return 0.0f;
    int const lane = static_cast<int>(threadIdx.x % 32);
    int const first = static_cast<int>(threadIdx.x) - lane + lane / kChannelsPerLoad;
    return smem_.stage.read_channel(2 * group + i / core::kRowPartials, first + i % core::kRowPartials * kThreadsPerRow,
                                    lane % kChannelsPerLoad);
  }
  /// fetch_next() of the steps of 16 rows that the warp has read by columns.
  __device__ __forceinline__ void fetch_next_group(int group) {
    __syncwarp();
    fetch_next(2 * group);
    fetch_next(2 * group + 1);
  }

  __device__ __forceinline__ void step() {
    tiles.step();
    if (tiles.has_next()) fetch_list(tiles.next);
  }

  /// Column sums of the tile. Rows that hold a value that is not finite are left out and named in *dropped; nullptr: there are none.
  /// [EQ-FIXED-ORDER] Rows that are not valid are zeros, which change no sum that started at +0.
  __device__ __forceinline__ Channels sums(std::uint32_t const** dropped) {
    FiniteCheck<kType> check;
    Channels sum = partial_sums(nullptr, [&](Packed const& x) { check.see(x); });
    *dropped = nullptr;
    if (__syncthreads_or(check.finite() ? 0 : 1) != 0) {
      find_dropped();
      *dropped = smem_.dropped;
      sum = partial_sums(smem_.dropped, [](Packed const&) {});
    }
    over_partials(sum, [](float a, float b) { return a + b; });
    return sum;
  }

 private:
  template <typename See>
  __device__ __forceinline__ Channels partial_sums(std::uint32_t const* dropped, See const& see) const {
    Channels sum = Channels::filled(0.0f);
#pragma unroll 4
    for (int s = 0; s < kRowsPerThread; ++s) {
      Packed const x_packed = packed(s, dropped);
      see(x_packed);
      Channels x;
      x_packed.decode(x.x);
      sum = per_channel([&](int c) { return sum[c] + x[c]; });
    }
    return sum;
  }
  __device__ __forceinline__ void find_dropped() {
    if (threadIdx.x < kMaskWords) smem_.dropped[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < kRowsPerThread; ++s) {
      FiniteCheck<kType> check;
      check.see(smem_.stage.read(s));
      if (!check.finite()) atomicOr(smem_.dropped + row(s) / 32, 1u << row(s) % 32);
    }
    __syncthreads();
  }
  /// The readers of the list come after the next barrier, those of the one before it had a barrier of their own.
  __device__ __forceinline__ void fetch_list(TilePlace const& at) {
    if constexpr (kSorted) {
      static_assert(formats::kTileRows % kWidth == 0);
#pragma unroll
      for (int r = static_cast<int>(threadIdx.x); r < formats::kTileRows; r += kWidth) {
        if (r < at.count()) {
          ptx::copy_async_4(&smem_.list[at.index % 2][r], p_.k.permutation + at.list + at.row + r);
        }
      }
    }
  }
  __device__ __forceinline__ void fetch(TilePlace const& at, int step) {
    bool const there = row(step) < at.count();
    int const in_tensor = kSorted ? smem_.list[at.index % 2][row(step)] : at.row + row(step);
    smem_.stage.fetch(step, tensor_, rope_, at.origin, in_tensor, channel(), there);
  }

  KernelParams const& p_;
  Tensor const& tensor_;
  RopeTables const& rope_;
  Smem& smem_;
};

inline constexpr int kTileSumThreads = 32 * core::kTilePartials;

/// Sum over tiles 0 .. tiles - 1 of values [tiles][width], by the 32 warps of a CTA: warp = partial, lane = one of 32 channels. Valid in
/// warp 0. [EQ-FIXED-ORDER]
__device__ __forceinline__ float sum_over_tiles(float const* values, std::int64_t tiles, int width, float (*partials)[32]) {
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int const k = static_cast<int>(threadIdx.x) / 32;
  float sum = 0.0f;
#pragma unroll 8
  for (std::int64_t j = k; j < tiles; j += core::kTilePartials) sum += values[j * width + lane];
  __syncthreads();  // the partials may still be read
  partials[k][lane] = sum;
  __syncthreads();
  if (k != 0) return 0.0f;
  float tree[core::kTilePartials];
#pragma unroll
  for (int i = 0; i < core::kTilePartials; ++i) tree[i] = partials[i][lane];
#pragma unroll
  for (int stride = core::kTilePartials / 2; stride >= 1; stride /= 2) {
#pragma unroll
    for (int i = 0; i < stride; ++i) tree[i] += tree[i + stride];
  }
  return tree[0];
}
/// The same for the largest value; of values that are not negative.
template <typename Value>
__device__ __forceinline__ float max_over_tiles(std::int64_t tiles, float (*partials)[32], Value const& value) {
  int const lane = static_cast<int>(threadIdx.x) % 32;
  int const k = static_cast<int>(threadIdx.x) / 32;
  float largest = 0.0f;
#pragma unroll 8
  for (std::int64_t j = k; j < tiles; j += core::kTilePartials) largest = fmaxf(largest, value(j));
  __syncthreads();
  partials[k][lane] = largest;
  __syncthreads();
  if (k != 0) return 0.0f;
  for (int i = 1; i < core::kTilePartials; ++i) largest = fmaxf(largest, partials[i][lane]);
  return largest;
}

}  // namespace vcattn::preparation::cuda
