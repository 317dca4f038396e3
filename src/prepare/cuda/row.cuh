#pragma once

// Steps of Q and K on a row that kThreads = 1 or 2 neighbouring threads hold in registers: thread q has the runs of 8 channels q,
// q + kThreads, ...

#include <cstdint>

#include "core/fixed_order.hpp"
#include "core/hadamard.hpp"
#include "device/ptx/control.cuh"
#include "prepare/cuda/packed_channels.cuh"

namespace vcattn::preparation::cuda {

inline constexpr int kLanes = 32;

/// Where 16-byte chunk `chunk` of row `row` lies, in rows of kChunks (a power of two): threads that access one chunk of neighbouring rows,
/// or neighbouring chunks of one row, meet in no bank.
template <int kChunks>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return chunk ^ (kChunks >= 8 ? row & 7 : row / (8 / kChunks) & (kChunks - 1));
}

template <int kWidth, int kThreads>
struct Row {
  static constexpr int kChannels = kWidth / kThreads;  // that a thread holds
  float x[kChannels];

  /// Which of the threads of its row the calling one is.
  __device__ __forceinline__ static int part() { return static_cast<int>(threadIdx.x) % kThreads; }
  /// The row of the CTA's tile that the calling thread holds.
  __device__ __forceinline__ static int in_tile() { return static_cast<int>(threadIdx.x) / kThreads; }

  /// Channel of x[c], c a multiple of 8.
  __device__ __forceinline__ static int channel_of(int c) { return c * kThreads + kChannelsPerLoad * part(); }

  template <typename Body>
  __device__ __forceinline__ static void for_each(Body const& body) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) body(c);
  }

  /// body(c, value of the channel that x[c] is), values [kWidth] in global memory.
  template <typename Body>
  __device__ __forceinline__ static void with_values(float const* values, Body const& body) {
    float const* const own = values + kChannelsPerLoad * part();
#pragma unroll
    for (int first = 0; first < kChannels; first += 4) {
      int const run = first / kChannelsPerLoad;
      float4 const y = *reinterpret_cast<float4 const*>(own + run * kThreads * kChannelsPerLoad + first % kChannelsPerLoad);
      body(first, y.x), body(first + 1, y.y), body(first + 2, y.z), body(first + 3, y.w);
    }
  }

  __device__ __forceinline__ void subtract(float const* values) {
    with_values(values, [&](int c, float y) { x[c] -= y; });
  }

  /// core::lane_dot with values [kWidth], in all threads of the row.
  __device__ __forceinline__ float dot(float const* values) const {
    float lanes[kDotLanes];
    with_values(values, [&](int c, float y) { add_product(lanes, c, x[c], y); });
    return sum_of(lanes);
  }
  /// core::lane_dot with itself.
  __device__ __forceinline__ float squared_norm() const {
    float lanes[kDotLanes];
    for_each([&](int c) { add_product(lanes, c, x[c], x[c]); });
    return sum_of(lanes);
  }

  /// [EQ-HADAMARD]
  __device__ __forceinline__ void hadamard() {
    butterflies<1, kChannelsPerLoad>();
    if constexpr (kThreads == 2) exchange();
    butterflies<kChannelsPerLoad, kChannels>();
    constexpr float kNorm = core::hadamard_norm(kWidth);
    for_each([&](int c) { x[c] *= kNorm; });
  }

  /// To a row of BF16 [kWidth].
  __device__ __forceinline__ void store_bf16(std::uint16_t* to) const {
#pragma unroll
    for (int c = 0; c < kChannels; c += kChannelsPerLoad) {
      auto const pair = [&](int i) { return ptx::pack_bfloat2(x[c + 2 * i], x[c + 2 * i + 1]); };
      __stcs(reinterpret_cast<uint4*>(to + channel_of(c)), make_uint4(pair(0), pair(1), pair(2), pair(3)));
    }
  }

  /// Largest magnitude of the thread's channels. NaN counts as nothing, as in core::max_f32.
  __device__ __forceinline__ float amax() const {
    constexpr int kChains = 4;  // short chains of dependent instructions
    float largest[kChains] = {};
    for_each([&](int c) { largest[c % kChains] = fmaxf(largest[c % kChains], fabsf(x[c])); });
    return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  }

 private:
  static constexpr int kDotLanes = kChannels / core::kChannelsPerLane;

  /// Strides kStride, 2 kStride, ... below kEnd between the thread's channels.
  template <int kStride, int kEnd>
  __device__ __forceinline__ void butterflies() {
    if constexpr (kStride < kEnd) {
      for_each([&](int c) {
        if ((c & kStride) != 0) return;
        float const a = x[c];
        float const b = x[c + kStride];
        x[c] = a + b;
        x[c + kStride] = a - b;
      });
      butterflies<2 * kStride, kEnd>();
    }
  }
  /// The stride between the threads: a + b in the first one of a pair, a - b in the second.
  __device__ __forceinline__ void exchange() {
    float const sign = (part() & 1) == 0 ? 1.0f : -1.0f;
    for_each([&](int c) { x[c] = core::fma_f32(x[c], sign, __shfl_xor_sync(kAllLanes, x[c], 1)); });
  }
  __device__ __forceinline__ static void add_product(float (&lanes)[kDotLanes], int c, float a, float b) {
    float& lane = lanes[c / core::kChannelsPerLane];
    lane = c % core::kChannelsPerLane == 0 ? a * b : core::fma_f32(a, b, lane);
  }
  /// Lane 2 run + half of the row is lanes[2 i + half] of the thread that holds the run as its i-th: strides down to 2 kThreads stay in the
  /// thread, those down to 2 are between threads, 1 is in the thread again.
  __device__ __forceinline__ static float sum_of(float (&lanes)[kDotLanes]) {
    fold<kDotLanes / 2>(lanes);
#pragma unroll
    for (int apart = kThreads / 2; apart >= 1; apart /= 2) {
      lanes[0] += __shfl_xor_sync(kAllLanes, lanes[0], apart);
      lanes[1] += __shfl_xor_sync(kAllLanes, lanes[1], apart);
    }
    return lanes[0] + lanes[1];
  }
  template <int kStride>
  __device__ __forceinline__ static void fold(float (&lanes)[kDotLanes]) {
    if constexpr (kStride >= 2) {
#pragma unroll
      for (int l = 0; l < kStride; ++l) lanes[l] += lanes[l + kStride];
      fold<kStride / 2>(lanes);
    }
  }
};

/// Whether something holds in all threads of the row.
template <int kThreads>
__device__ __forceinline__ bool all_of_row(bool own) {
  if constexpr (kThreads == 1) return own;
  unsigned const votes = __ballot_sync(kAllLanes, !own);
  return (votes >> (static_cast<int>(threadIdx.x) % kLanes & -kThreads) & ((1u << kThreads) - 1)) == 0;
}

/// The rows of a warp on their way from memory: fetched by all threads in whole cache lines, read by those that hold them.
template <DType kType, int kWidth, int kThreads>
class RowStage {
 public:
  static constexpr int kRows = kLanes / kThreads;
  using RowType = Row<kWidth, kThreads>;

  /// Starts to fetch. origin: element of the (sequence, head); row_of(r): row of the tensor that row r of the warp is; rows from `count` on
  /// and channels beyond head_dim become zeros.
  template <typename RowOf>
  __device__ __forceinline__ void fetch(Tensor const& t, RopeTables const& rope, std::int64_t origin, int count, RowOf const& row_of) {
    int const lane = static_cast<int>(threadIdx.x) % kLanes;
    int const run = lane % kRuns;
    int const channel = run * kChannelsPerLoad;
#pragma unroll
    for (int i = 0; i < kRows / kRowsPerFetch; ++i) {
      int const r = i * kRowsPerFetch + lane / kRuns;
      int const row = row_of(r);
      bool const there = r < count && channel < t.head_dim;
      if constexpr (kType == DType::f32) {
        if (t.direct == 0 && there) {
          load_converted(t, rope, origin, row, channel, &vector(r, run, 0), &vector(r, run, 1));
          continue;
        }
      }
      std::byte const* const from = t.address<kType>(origin, row, channel);
#pragma unroll
      for (int v = 0; v < Packed::kVectors; ++v) ptx::copy_async_16(&vector(r, run, v), from + 16 * v, there);
    }
    ptx::commit_async_copies();
  }

  /// The calling thread's part of its row, zeros where the row holds a value that is not finite. All of the warp take part.
  __device__ __forceinline__ RowType read(bool* finite) {
    ptx::wait_async_copies<0>();
    __syncwarp();
    int const r = static_cast<int>(threadIdx.x) % kLanes / kThreads;
    RowType row;
    bool all_finite = true;
#pragma unroll
    for (int i = 0; i < kRuns / kThreads; ++i) {
      int const run = i * kThreads + RowType::part();
      Packed packed;
#pragma unroll
      for (int v = 0; v < Packed::kVectors; ++v) packed.bits[v] = vector(r, run, v);
      FiniteCheck<kType> check;
      check.see(packed);
      all_finite = all_finite && check.finite();
      float values[kChannelsPerLoad];
      packed.decode(values);
#pragma unroll
      for (int c = 0; c < kChannelsPerLoad; ++c) row.x[i * kChannelsPerLoad + c] = values[c];
    }
    all_finite = all_of_row<kThreads>(all_finite);
    __syncwarp();
    if (!all_finite) {
      ptx::keep_branch();
      RowType::for_each([&](int c) { row.x[c] = 0.0f; });
    }
    *finite = all_finite;
    return row;
  }

 private:
  using Packed = PackedChannels<kType>;
  static constexpr int kRuns = kWidth / kChannelsPerLoad;
  static constexpr int kRowsPerFetch = kLanes / kRuns;
  static constexpr int kChunks = kRuns * Packed::kVectors;

  __device__ __forceinline__ uint4& vector(int row, int run, int v) {
    return rows_[row][swizzled<kChunks>(row, run * Packed::kVectors + v)];
  }

  uint4 rows_[kRows][kChunks];
};

}  // namespace vcattn::preparation::cuda
