#pragma once

// Neighbouring blocks of the sorted rows exchange rows, inside windows that fit into shared memory. [EQ-EXCHANGE]

#include "grouping/cuda/value_rows.cuh"

namespace vcattn::grouping::cuda {

inline constexpr int kExchangeThreads = 768;
inline constexpr int kExchangeWarps = kExchangeThreads / kWarpLanes;
inline constexpr int kMaxWindowPairs = kMaxWindowBlocks / 2;
inline constexpr int kNoBlock = -1;

/// Rows stay in their slots; what moves is which slot stands at which position of the order.
template <int kWidth>
struct ExchangeSmem {
  static constexpr int kChannelGroups = kWidth / 32;                   // of 32 channels, a warp sums one
  static constexpr int kSlotGroups = kExchangeWarps / kChannelGroups;  // parts of the slots that are summed apart

  Eight rows[kWindowRows * kWidth / 8];
  Eight directions[kMaxWindowPairs * kWidth / 8];  // of a pair of blocks: mean of the second less mean of the first, BF16
  float sums[kSlotGroups][kMaxWindowBlocks][kWidth];
  float projections[kWindowRows];      // by slot, on the direction of its pair
  std::int32_t row_of[kWindowRows];    // by slot
  std::uint16_t slot_of[kWindowRows];  // by position
  Bf16 block_of[kWindowRows];          // by slot; small integers, so that a comparison of two makes two elements of a matrix
  Bf16 origin[kWidth];
};

struct Window {
  int count;   // rows
  int blocks;  // of v_block rows, the last one possibly shorter
  int v_block;

  __device__ int block_rows(int block) const { return min(v_block, count - block * v_block); }
  __device__ int chunks() const { return (count + kRowsPerMma - 1) / kRowsPerMma; }
};

/// Sums of the rows of every block: the product of the matrix that has a one where a block owns a slot with the rows.
template <int kWidth>
__device__ inline void sum_blocks(ExchangeSmem<kWidth>& smem, Window const& window) {
  using Smem = ExchangeSmem<kWidth>;
  MmaLane const lane;
  int const warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  int const first_piece = warp % Smem::kChannelGroups * 4;
  int const slot_group = warp / Smem::kChannelGroups;
  int const matrix = static_cast<int>(threadIdx.x) % kWarpLanes / 8;
  int const matrix_row = static_cast<int>(threadIdx.x) % 8;
  Eight const* matrices[2];  // the lane's row of the four matrices in the first chunk
  for (int pair = 0; pair < 2; ++pair)
    matrices[pair] = smem.rows + piece_index<kWidth>(matrix % 2 * 8 + matrix_row, first_piece + 2 * pair + matrix / 2);
  Bf16Pair const own_block = __float2bfloat162_rn(static_cast<float>(lane.group));
  float sums[4][4] = {};
#pragma unroll 4
  for (int chunk = slot_group; chunk < window.chunks(); chunk += Smem::kSlotGroups) {
    // 1 where the lane's block owns a slot, else 0.
    auto const owned = [&](int slot) { return bits_of(__heq2(*reinterpret_cast<Bf16Pair const*>(smem.block_of + slot), own_block)); };
    std::uint32_t const owned_low = owned(chunk * kRowsPerMma + 2 * lane.quad);
    std::uint32_t const owned_high = owned(chunk * kRowsPerMma + 2 * lane.quad + 8);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint4 const x = ptx::load_matrices_transposed(rows_from<kWidth>(matrices[pair], chunk * kRowsPerMma));
      ptx::mma_bf16(sums[2 * pair], owned_low, 0, owned_high, 0, x.x, x.y);
      ptx::mma_bf16(sums[2 * pair + 1], owned_low, 0, owned_high, 0, x.z, x.w);
    }
  }
#pragma unroll
  for (int piece = 0; piece < 4; ++piece) {
    float* const out = smem.sums[slot_group][lane.group] + 8 * (first_piece + piece) + 2 * lane.quad;
    *reinterpret_cast<float2*>(out) = {sums[piece][0], sums[piece][1]};
  }
}

/// Pair i: blocks 2 i + parity and the next one. A block without a partner gets the direction 0.
template <int kWidth>
__device__ inline void find_directions(ExchangeSmem<kWidth>& smem, Window const& window, int parity) {
  for (int i = static_cast<int>(threadIdx.x); i < kMaxWindowPairs * kWidth; i += kExchangeThreads) {
    int const pair = i / kWidth;
    int const channel = i % kWidth;
    int const block = 2 * pair + parity;
    float direction = 0.0f;
    if (block + 1 < window.blocks) {
      float first = 0.0f;
      float second = 0.0f;
      for (int group = 0; group < ExchangeSmem<kWidth>::kSlotGroups; ++group) {
        first += smem.sums[group][block][channel];
        second += smem.sums[group][block + 1][channel];
      }
      direction = second / static_cast<float>(window.block_rows(block + 1)) - first / static_cast<float>(window.v_block);
    }
    reinterpret_cast<Bf16*>(smem.directions + piece_index<kWidth>(pair, channel / 8))[channel % 8] = __float2bfloat16_rn(direction);
  }
}

/// Projects every row on the direction of its pair: on all directions, of which one is kept.
template <int kWidth>
__device__ inline void project_rows(ExchangeSmem<kWidth>& smem, Window const& window, int parity) {
  MmaLane const lane;
#pragma unroll 2
  for (int chunk = static_cast<int>(threadIdx.x) / kWarpLanes; chunk < window.chunks(); chunk += kExchangeWarps) {
    Eight const* const rows = rows_from<kWidth>(smem.rows, chunk * kRowsPerMma);
    float products[4];
    multiply_rows<kWidth>(tile_row<kWidth>(rows, lane.group), tile_row<kWidth>(rows, lane.group + 8), smem.directions,
                          lane.group % kMaxWindowPairs, products);
    auto const keep = [&](int slot, float even_pair, float odd_pair) {
      int const pair = (static_cast<int>(__bfloat162float(smem.block_of[slot])) - parity) >> 1;
      if (pair >> 1 == lane.quad) smem.projections[slot] = pair % 2 == 0 ? even_pair : odd_pair;
    };
    keep(chunk * kRowsPerMma + lane.group, products[0], products[1]);
    keep(chunk * kRowsPerMma + lane.group + 8, products[2], products[3]);
  }
}

__device__ __forceinline__ float warp_min(float x) {
  for (int step = kWarpLanes / 2; step >= 1; step /= 2) x = fminf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// Gives the smallest projections of a pair of blocks to its first one, ties by position, and keeps the order otherwise. One warp.
template <int kWidth>
__device__ inline void split_pair(ExchangeSmem<kWidth>& smem, Window const& window, int first_block) {
  constexpr int kSteps = 2 * static_cast<int>(formats::kTileRows) / kWarpLanes;
  constexpr int kKeyBits = 24;
  int const lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  unsigned const lanes_below = (1u << lane) - 1;
  int const begin = first_block * window.v_block;
  int const count = window.v_block + window.block_rows(first_block + 1);
  float projections[kSteps];
  int slots[kSteps];
  float lowest = INFINITY;
  float highest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    int const position = min(i * kWarpLanes + lane, count - 1);
    slots[i] = smem.slot_of[begin + position];
    projections[i] = smem.projections[slots[i]];
    lowest = fminf(lowest, projections[i]);
    highest = fmaxf(highest, projections[i]);
  }
  lowest = warp_min(lowest);
  highest = -warp_min(-highest);

  // Integers over the range of the projections: the search below ends once it has told neighbours apart. NaN becomes 0.
  float const keys_per_unit = static_cast<float>(1 << kKeyBits) / (highest - lowest);
  std::uint32_t keys[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    bool const valid = i * kWarpLanes + lane < count;
    keys[i] = valid ? min(__float2uint_rz((projections[i] - lowest) * keys_per_unit), 1u << kKeyBits) : ~0u;
  }
  // The largest threshold with no more than v_block keys below it, bit by bit.
  std::uint32_t threshold = 0;
  int below = 0;
  for (std::uint32_t bit = 1u << kKeyBits; bit != 0 && below != window.v_block; bit >>= 1) {
    int smaller = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) smaller += keys[i] < (threshold | bit) ? 1 : 0;
    smaller = __reduce_add_sync(~0u, smaller);
    if (smaller > window.v_block) continue;
    threshold |= bit;
    below = smaller;
  }

  int equal_to_take = window.v_block - below;
  int first = begin;
  int second = begin + window.v_block;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    bool const valid = i * kWarpLanes + lane < count;
    unsigned const equal = __ballot_sync(~0u, keys[i] == threshold);
    bool const taken = keys[i] < threshold || (keys[i] == threshold && __popc(equal & lanes_below) < equal_to_take);
    unsigned const to_first = __ballot_sync(~0u, taken);
    unsigned const to_second = __ballot_sync(~0u, valid && !taken);
    if (valid) {
      int const position = taken ? first + __popc(to_first & lanes_below) : second + __popc(to_second & lanes_below);
      smem.slot_of[position] = static_cast<std::uint16_t>(slots[i]);
      smem.block_of[slots[i]] = __float2bfloat16_rn(static_cast<float>(first_block + (taken ? 0 : 1)));
    }
    equal_to_take -= min(equal_to_take, __popc(equal));
    first += __popc(to_first);
    second += __popc(to_second);
  }
}

/// grid: (windows of the longest sequence, heads). Reorders the window's part of the permutation.
template <Source kSource, int kWidth>
__global__ void __launch_bounds__(kExchangeThreads, 1) exchange_kernel(__grid_constant__ Params const p) {
  Head const h = head_of(p, static_cast<int>(blockIdx.y));
  int const window_rows = window_blocks(p.v_block) * p.v_block;
  std::int64_t const window_begin = static_cast<std::int64_t>(blockIdx.x) * window_rows;
  if (window_begin + p.v_block >= h.count) return;  // less than two blocks
  extern __shared__ uint4 dynamic_smem[];
  auto& smem = *reinterpret_cast<ExchangeSmem<kWidth>*>(dynamic_smem);
  int const thread = static_cast<int>(threadIdx.x);
  int const warp = thread / kWarpLanes;
  int const count = static_cast<int>(min(static_cast<std::int64_t>(window_rows), h.count - window_begin));
  Window const window{count, (count + p.v_block - 1) / p.v_block, p.v_block};
  std::int32_t* const order = p.permutation + h.first_row + window_begin;

  load_origin(p, h, smem.origin);
  for (int slot = thread; slot < kWindowRows; slot += kExchangeThreads) {
    smem.row_of[slot] = order[min(slot, count - 1)];
    smem.slot_of[slot] = static_cast<std::uint16_t>(slot);
    smem.block_of[slot] = __float2bfloat16_rn(static_cast<float>(slot < count ? slot / p.v_block : kNoBlock));
  }
  __syncthreads();
  for (int chunk = warp; chunk < window.chunks(); chunk += kExchangeWarps) {
    int const upper = chunk * kRowsPerMma + MmaLane().group;
    RowPiece<kWidth> const upper_row = load_row<kSource, kWidth>(p, h, smem.row_of[upper], smem.origin);
    RowPiece<kWidth> const lower_row = load_row<kSource, kWidth>(p, h, smem.row_of[upper + 8], smem.origin);
    store_row<kWidth>(smem.rows, upper, upper_row);
    store_row<kWidth>(smem.rows, upper + 8, lower_row);
  }
  __syncthreads();

  for (int pass = 0; pass < kExchangePasses; ++pass) {
    int const parity = pass % 2;
    sum_blocks(smem, window);
    __syncthreads();
    find_directions(smem, window, parity);
    __syncthreads();
    project_rows(smem, window, parity);
    __syncthreads();
    if (2 * warp + parity + 1 < window.blocks) split_pair(smem, window, 2 * warp + parity);
    __syncthreads();
  }
  for (int position = thread; position < count; position += kExchangeThreads) order[position] = smem.row_of[smem.slot_of[position]];
}

}  // namespace vcattn::grouping::cuda
