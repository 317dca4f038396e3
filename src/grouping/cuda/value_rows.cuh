#pragma once

// Rows of V on the device: about an origin and rounded to BF16, in the registers of matrix operands.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "device/ptx/mma.cuh"
#include "grouping/cuda/params.hpp"

namespace vcattn::grouping::cuda {

using Eight = uint4;  // eight BF16 numbers
using Bf16 = __nv_bfloat16;
using Bf16Pair = __nv_bfloat162;

inline constexpr int kWarpLanes = 32;
inline constexpr int kRowsPerMma = 16;
inline constexpr int kColumnsPerMma = 8;

/// Place of a lane in a matrix operand: row of eight, and which four lanes share it.
struct MmaLane {
  int group = static_cast<int>(threadIdx.x) % kWarpLanes / 4;
  int quad = static_cast<int>(threadIdx.x) % 4;
};

/// One (sequence, kv head).
struct Head {
  int index = 0;           // of all heads
  std::int64_t count = 0;  // valid rows that are grouped
  std::int64_t rows = 0;   // of the caller's tensor, padding included
  int clusters = 0;
  std::int64_t first_element = 0;  // of V
  std::int64_t first_row = 0;      // of the permutation
};

__device__ inline Head head_of(Params const& p, int index) {
  int const sequence = index / p.num_heads_kv;
  int const head = index % p.num_heads_kv;
  formats::SequenceExtent const extent = p.sequences[sequence];
  Head h;
  h.index = index;
  h.count = p.grouped != 0 ? extent.seqlen_kv : 0;
  h.rows = extent.rows_kv;
  h.clusters = p.rule.count(h.count);
  h.first_element = (p.varlen != 0 ? extent.row_begin_kv * p.stride[1] : sequence * p.stride[0]) + head * p.stride[2];
  h.first_row = p.num_heads_kv * extent.row_begin_kv + head * extent.rows_kv;
  return h;
}

__device__ inline float load_element(Params const& p, std::int64_t element) {
  if (p.dtype == DType::f32) return static_cast<float const*>(p.v)[element];
  if (p.dtype == DType::f16) return __half2float(static_cast<__half const*>(p.v)[element]);
  return __bfloat162float(static_cast<Bf16 const*>(p.v)[element]);
}

__device__ __forceinline__ std::uint32_t bits_of(Bf16Pair pair) { return *reinterpret_cast<std::uint32_t const*>(&pair); }
__device__ __forceinline__ Bf16Pair bf16_pair(std::uint32_t bits) { return *reinterpret_cast<Bf16Pair const*>(&bits); }

/// Two numbers of V as they are stored, about two of the origin.
template <Source kSource>
__device__ __forceinline__ std::uint32_t pair_about(std::uint32_t raw, std::uint32_t origin) {
  if constexpr (kSource == Source::bf16) return bits_of(__hsub2(bf16_pair(raw), bf16_pair(origin)));
  float2 const x = __half22float2(*reinterpret_cast<__half2 const*>(&raw));
  float2 const o = __bfloat1622float2(bf16_pair(origin));
  return bits_of(__floats2bfloat162_rn(x.x - o.x, x.y - o.y));
}

/// Channels of a row that a lane holds: eight at 32 c + 8 quad for every c. The two 16-column operands of 32 channels take them in the same
/// permuted order on both sides of a product, so that every load has 16 bytes.
template <int kWidth>
struct RowPiece {
  static constexpr int kPieces = kWidth / 32;
  Eight x[kPieces];
};

/// Loads a lane's part of a valid row. origin: shared memory.
template <Source kSource, int kWidth>
__device__ __forceinline__ RowPiece<kWidth> load_row(Params const& p, Head const& h, std::int64_t row, Bf16 const* origin) {
  constexpr int kPieces = RowPiece<kWidth>::kPieces;
  int const first_channel = 8 * MmaLane().quad;
  std::int64_t const first = h.first_element + row * p.stride[1];
  auto const* const origins = reinterpret_cast<Eight const*>(origin);
  RowPiece<kWidth> piece;
  if constexpr (kSource == Source::any) {
    auto* const out = reinterpret_cast<std::uint32_t*>(piece.x);
    for (int i = 0; i < 4 * kPieces; ++i) {
      int const channel = first_channel + i / 4 * 32 + i % 4 * 2;
      auto const element = [&](int c) {
        return c < p.head_dim ? load_element(p, first + c * p.stride[3]) - __bfloat162float(origin[c]) : 0.0f;
      };
      out[i] = bits_of(__floats2bfloat162_rn(element(channel), element(channel + 1)));
    }
  } else {
    for (int c = 0; c < kPieces; ++c) {
      int const channel = first_channel + 32 * c;
      piece.x[c] = channel < p.head_dim ? __ldg(reinterpret_cast<Eight const*>(static_cast<std::uint16_t const*>(p.v) + first + channel))
                                        : Eight{0, 0, 0, 0};
    }
    for (int c = 0; c < kPieces; ++c) {
      Eight const o = origins[4 * c + MmaLane().quad];
      Eight& x = piece.x[c];
      x = {pair_about<kSource>(x.x, o.x), pair_about<kSource>(x.y, o.y), pair_about<kSource>(x.z, o.z), pair_about<kSource>(x.w, o.w)};
    }
  }
  return piece;
}

/// Index of 16 bytes of a row in a tile of BF16 rows in shared memory, so placed that eight lanes that read either two rows and a quad of
/// pieces, or one piece of eight rows, meet no bank twice.
template <int kWidth>
__device__ __forceinline__ int piece_index(int row, int piece) {
  return row * (kWidth / 8) + (piece ^ ((row & 1) * 4 + (row >> 1) % 4));
}

template <int kWidth>
__device__ __forceinline__ void store_row(Eight* tile, int row, RowPiece<kWidth> const& piece) {
  for (int c = 0; c < RowPiece<kWidth>::kPieces; ++c) tile[piece_index<kWidth>(row, 4 * c + MmaLane().quad)] = piece.x[c];
}
template <int kWidth>
__device__ __forceinline__ RowPiece<kWidth> tile_row(Eight const* tile, int row) {
  RowPiece<kWidth> piece;
  for (int c = 0; c < RowPiece<kWidth>::kPieces; ++c) piece.x[c] = tile[piece_index<kWidth>(row, 4 * c + MmaLane().quad)];
  return piece;
}

/// Where a multiple of eight rows of a tile begins; rows behind it are placed as in the tile's first eight.
template <int kWidth>
__device__ __forceinline__ Eight const* rows_from(Eight const* tile, int first_row) {
  return tile + first_row * (kWidth / 8);
}

/// Products of 16 rows (upper: row `group`, lower: + 8) with 8 rows of a tile, of which the lane reads row `row`.
template <int kWidth>
__device__ __forceinline__ void multiply_rows(RowPiece<kWidth> const& upper, RowPiece<kWidth> const& lower, Eight const* tile, int row,
                                              float (&products)[4]) {
  RowPiece<kWidth> const b = tile_row<kWidth>(tile, row);
  for (float& product : products) product = 0.0f;
#pragma unroll
  for (int c = 0; c < RowPiece<kWidth>::kPieces; ++c) {
    ptx::mma_bf16(products, upper.x[c].x, lower.x[c].x, upper.x[c].y, lower.x[c].y, b.x[c].x, b.x[c].y);
    ptx::mma_bf16(products, upper.x[c].z, lower.x[c].z, upper.x[c].w, lower.x[c].w, b.x[c].z, b.x[c].w);
  }
}

__device__ __forceinline__ void load_origin(Params const& p, Head const& h, Bf16* origin) {
  for (int c = static_cast<int>(threadIdx.x); c < p.width; c += static_cast<int>(blockDim.x))
    reinterpret_cast<std::uint16_t*>(origin)[c] = p.origin[h.index * p.width + c];
}

/// Memory for a type behind a cursor into dynamic shared memory.
template <typename T>
__device__ __forceinline__ T* take(unsigned char*& cursor, int count) {
  auto* const place = reinterpret_cast<T*>(cursor);
  cursor += count * static_cast<int>(sizeof(T));
  return place;
}

}  // namespace vcattn::grouping::cuda
