#pragma once

// Eight neighbouring channels of a row as the caller stores them: fetched, tested, turned into FP32.

#include <cstdint>

#include "core/half.hpp"
#include "device/ptx/copy_async.cuh"
#include "device/ptx/packed.cuh"
#include "prepare/cuda/params.cuh"

namespace vcattn::preparation::cuda {

inline constexpr int kChannelsPerLoad = 8;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ void load_floats(float const* values, float (&y)[kChannelsPerLoad]) {
  auto const* const vectors = reinterpret_cast<float4 const*>(values);
  float4 const a = vectors[0];
  float4 const b = vectors[1];
  y[0] = a.x, y[1] = a.y, y[2] = a.z, y[3] = a.w;
  y[4] = b.x, y[5] = b.y, y[6] = b.z, y[7] = b.w;
}

template <DType kType>
struct PackedChannels {
  static constexpr int kVectors = kType == DType::f32 ? 2 : 1;
  uint4 bits[kVectors];

  __device__ __forceinline__ static PackedChannels zero() {
    PackedChannels x;
#pragma unroll
    for (uint4& vector : x.bits) vector = make_uint4(0, 0, 0, 0);
    return x;
  }

  __device__ __forceinline__ std::uint32_t word(int i) const {
    uint4 const& v = bits[i / 4];
    return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
  }

  __device__ __forceinline__ void decode(float (&x)[kChannelsPerLoad]) const {
#pragma unroll
    for (int i = 0; i < 4 * kVectors; ++i) {
      if constexpr (kType == DType::f32) {
        x[i] = core::f32_from_bits(word(i));
      } else if constexpr (kType == DType::bf16) {
        x[2 * i] = core::f32_from_bits(word(i) << 16);
        x[2 * i + 1] = core::f32_from_bits(word(i) & 0xFFFF0000u);
      } else {
        x[2 * i] = ptx::low_float(word(i));
        x[2 * i + 1] = ptx::high_float(word(i));
      }
    }
  }
};

/// Notices values that are not finite: 0 * x + sum stays a zero otherwise.
template <DType kType>
class FiniteCheck {
 public:
  __device__ __forceinline__ void see(PackedChannels<kType> const& x) {
#pragma unroll
    for (int i = 0; i < 4 * PackedChannels<kType>::kVectors; ++i) {
      if constexpr (kType == DType::f32) {
        sum_ = core::f32_bits(core::fma_f32(core::f32_from_bits(x.word(i)), 0.0f, core::f32_from_bits(sum_)));
      } else {
        sum_ = kType == DType::bf16 ? ptx::fma_bfloat2(x.word(i), 0, sum_) : ptx::fma_half2(x.word(i), 0, sum_);
      }
    }
  }
  /// Zeros of either sign, or NaN.
  __device__ __forceinline__ bool finite() const { return (sum_ & (kType == DType::f32 ? 0x7FFFFFFFu : 0x7FFF7FFFu)) == 0; }

 private:
  std::uint32_t sum_ = 0;
};

/// Element `offset` of a tensor as FP32.
__device__ __forceinline__ float load_element(Tensor const& t, std::int64_t offset) {
  if (t.dtype == DType::f32) return static_cast<float const*>(t.data)[offset];
  std::uint16_t const code = static_cast<std::uint16_t const*>(t.data)[offset];
  return t.dtype == DType::bf16 ? core::bf16_decode(code) : core::fp16_decode(code);
}

/// Channel `channel` of the row at element `row` of a tensor, rotated where there are tables. [EQ-ROPE]
__device__ __forceinline__ float load_rotated(Tensor const& t, RopeTables const& rope, std::int64_t row, std::int64_t position,
                                              int channel) {
  float const x = load_element(t, row + channel * t.stride[3]);
  int const own = channel - rope.first_channel;
  if (rope.cos == nullptr || own < 0 || own >= rope.rotary_dim) return x;
  int const half = rope.rotary_dim / 2;
  bool const second = rope.interleaved != 0 ? own % 2 != 0 : own >= half;
  int const pair = rope.interleaved != 0 ? own / 2 : second ? own - half : own;
  int const partner = rope.interleaved != 0 ? own ^ 1 : second ? own - half : own + half;
  float const turned = load_element(t, row + (rope.first_channel + partner) * t.stride[3]) * rope.sin[position * half + pair];
  return core::fma_f32(x, rope.cos[position * half + pair], second ? turned : -turned);
}

/// Channels channel .. channel + 7 (a multiple of 8) of row `row`, where the tensor has aligned runs.
__device__ __forceinline__ void load_run(Tensor const& t, std::int64_t origin, std::int32_t row, int channel,
                                         float (&x)[kChannelsPerLoad]) {
  if (t.dtype == DType::f32) {
    return load_floats(reinterpret_cast<float const*>(t.address<DType::f32>(origin, row, channel)), x);
  }
  uint4 const bits = *reinterpret_cast<uint4 const*>(t.address<DType::bf16>(origin, row, channel));
  if (t.dtype == DType::bf16) return PackedChannels<DType::bf16>{{bits}}.decode(x);
  PackedChannels<DType::f16>{{bits}}.decode(x);
}

/// The same rotated, where table entries of a run can be read at once. [EQ-ROPE]
__device__ __forceinline__ void load_rotated_run(Tensor const& t, RopeTables const& rope, std::int64_t origin, std::int32_t row,
                                                 int channel, float (&x)[kChannelsPerLoad]) {
  load_run(t, origin, row, channel, x);
  int const own = channel - rope.first_channel;
  if (rope.cos == nullptr || own < 0 || own >= rope.rotary_dim) return;
  int const half = rope.rotary_dim / 2;
  std::int64_t const entries = std::int64_t{row} * half;
  if (rope.interleaved != 0) {
    float4 const cos = *reinterpret_cast<float4 const*>(rope.cos + entries + own / 2);
    float4 const sin = *reinterpret_cast<float4 const*>(rope.sin + entries + own / 2);
    float const of_pair[kChannelsPerLoad] = {cos.x, sin.x, cos.y, sin.y, cos.z, sin.z, cos.w, sin.w};
#pragma unroll
    for (int c = 0; c < kChannelsPerLoad; c += 2) {
      float const first = core::fma_f32(x[c], of_pair[c], -(x[c + 1] * of_pair[c + 1]));
      x[c + 1] = core::fma_f32(x[c + 1], of_pair[c], x[c] * of_pair[c + 1]);
      x[c] = first;
    }
    return;
  }
  bool const second = own >= half;
  float cos[kChannelsPerLoad], sin[kChannelsPerLoad], partner[kChannelsPerLoad];
  load_floats(rope.cos + entries + (second ? own - half : own), cos);
  load_floats(rope.sin + entries + (second ? own - half : own), sin);
  load_run(t, origin, row, second ? channel - half : channel + half, partner);
#pragma unroll
  for (int c = 0; c < kChannelsPerLoad; ++c) {
    float const turned = partner[c] * sin[c];
    x[c] = core::fma_f32(x[c], cos[c], second ? turned : -turned);
  }
}

/// The same for any tensor and tables. Out of line: it is there to be complete, not to be fast.
__device__ __noinline__ void load_elements(Tensor const& t, RopeTables const& rope, std::int64_t origin, std::int32_t row, int channel,
                                           uint4* first, uint4* second) {
  std::uint32_t x[kChannelsPerLoad];
#pragma unroll
  for (int c = 0; c < kChannelsPerLoad; ++c) x[c] = core::f32_bits(load_rotated(t, rope, origin + row * t.stride[1], row, channel + c));
  *first = make_uint4(x[0], x[1], x[2], x[3]);
  *second = make_uint4(x[4], x[5], x[6], x[7]);
}

/// Eight channels of a row that must be converted or rotated, as two vectors of FP32.
__device__ __forceinline__ void load_converted(Tensor const& t, RopeTables const& rope, std::int64_t origin, std::int32_t row, int channel,
                                               uint4* first, uint4* second) {
  if (t.runs == 0) return load_elements(t, rope, origin, row, channel, first, second);
  float x[kChannelsPerLoad];
  load_rotated_run(t, rope, origin, row, channel, x);
  *reinterpret_cast<float4*>(first) = make_float4(x[0], x[1], x[2], x[3]);
  *reinterpret_cast<float4*>(second) = make_float4(x[4], x[5], x[6], x[7]);
}

/// Where packed channels wait between memory and registers, each in a slot that one thread alone writes and reads: no barrier is needed.
template <DType kType, int kSlots, int kThreads>
class Stage {
 public:
  using Packed = PackedChannels<kType>;

  /// Starts to fetch channels channel .. channel + 7 (a multiple of 8) of row `row` of the (sequence, head) that begins at element
  /// `origin`: zeros beyond head_dim, and where the row is not valid.
  __device__ __forceinline__ void fetch(int slot, Tensor const& t, RopeTables const& rope, std::int64_t origin, std::int32_t row,
                                        int channel, bool valid) {
    bool const there = valid && channel < t.head_dim;
    if constexpr (kType == DType::f32) {
      if (t.direct == 0 && there) {
        load_converted(t, rope, origin, row, channel, &vectors_[slot][0][threadIdx.x], &vectors_[slot][1][threadIdx.x]);
        return;
      }
    }
    std::byte const* const from = t.address<kType>(origin, row, channel);
#pragma unroll
    for (int v = 0; v < Packed::kVectors; ++v) ptx::copy_async_16(&vectors_[slot][v][threadIdx.x], from + 16 * v, there);
  }
  __device__ __forceinline__ static void wait() {
    ptx::commit_async_copies();
    ptx::wait_async_copies<0>();
  }

  __device__ __forceinline__ Packed read(int slot) const {
    Packed x;
#pragma unroll
    for (int v = 0; v < Packed::kVectors; ++v) x.bits[v] = vectors_[slot][v][threadIdx.x];
    return x;
  }

  /// Channel c of the eight that a thread has in a slot. Another thread's are there after its wait() and a barrier.
  __device__ __forceinline__ float read_channel(int slot, int thread, int c) const {
    constexpr int kPerVector = kChannelsPerLoad / Packed::kVectors;
    void const* const vector = &vectors_[slot][c / kPerVector][thread];
    if constexpr (kType == DType::f32) {
      return static_cast<float const*>(vector)[c % kPerVector];
    } else {
      std::uint16_t const code = static_cast<std::uint16_t const*>(vector)[c];
      return kType == DType::bf16 ? core::bf16_decode(code) : ptx::low_float(code);
    }
  }

 private:
  uint4 vectors_[kSlots][Packed::kVectors][kThreads];
};

}  // namespace vcattn::preparation::cuda
