#pragma once

// What shaped rounding needs to know of the other operand: its second moment, and the feedback that follows from it. [EQ-SHAPED]

#include "prepare/cuda/query_key.cuh"

namespace vcattn::preparation::cuda {

/// z8 of a tile, transposed: [channel][128 rows], in swizzled chunks of 16 rows.
template <int kWidth>
struct TransposedTile {
  static constexpr int kChunks = static_cast<int>(kTileRows) / 16;
  uint4 channels[kWidth][kChunks];

  __device__ __forceinline__ std::int8_t& element(int channel, int row) {
    return reinterpret_cast<std::int8_t*>(&channels[channel][swizzled<kChunks>(channel, row / 16)])[row % 16];
  }
  /// Rows of four 8 x 16 matrices from channel `channel` and chunk `chunk` on; matrices 1 and 3 lie `channel_step` channels on, 2 and 3 one
  /// chunk (or the other way round).
  __device__ __forceinline__ uint4 matrices(int channel, int chunk, bool channels_first) const {
    int const lane = lane_index();
    int const first = lane / 8 % 2;
    int const second = lane / 16;
    int const c = channel + 8 * (channels_first ? first : second) + lane % 8;
    return ptx::load_matrices(&channels[c][swizzled<kChunks>(c, chunk + (channels_first ? second : first))]);
  }
};

inline constexpr int kMomentWarps = tile_warps(1);

template <DType kType, int kWidth>
struct MomentSmem {
  RowStage<kType, kWidth, 1> stages[kMomentWarps];
  TransposedTile<kWidth> tile;
};

/// Adds the moments of some tiles of a head to its sums, which are integers: the order does not matter. Grid: (CTAs a head, heads).
template <DType kType, int kWidth, Role kRole>
__global__ void __launch_bounds__(tile_threads(1), 2) moment_kernel(__grid_constant__ KernelParams const p) {
  constexpr int kMTiles = kWidth / kMomentWarps / 16;  // rows of the moment that belong to a warp
  constexpr int kNTiles = kWidth / 8;
  extern __shared__ uint4 memory[];
  auto& smem = *reinterpret_cast<MomentSmem<kType, kWidth>*>(memory);
  OperandParams const& x = operand<kRole>(p);
  auto const head = static_cast<std::int32_t>(blockIdx.y);
  std::int32_t const num_heads = kRole == Role::query ? p.num_heads : p.num_heads_kv;
  auto const& s = p.sequences[head / num_heads];
  std::int64_t const tiles = kRole == Role::query ? s.tiles_q : s.tiles_kv;
  std::int64_t const first_tile = num_heads * (kRole == Role::query ? s.tile_begin_q : s.tile_begin_kv) + head % num_heads * tiles;
  std::int64_t const step = moment_tile_step(tiles);
  float const amax = __uint_as_float(x.amax[head]);
  if (amax < core::kAmaxFloor) return;
  float const inverse = formats::kInt8Max / amax;

  TileRows<kType, kWidth, kRole, 1> rows(p, smem.stages);
  std::int32_t sums[kMTiles][kNTiles][4] = {};
  int const warp_channel = warp_index() * (kWidth / kMomentWarps);
  for (std::int64_t j = blockIdx.x * step; j < tiles; j += gridDim.x * step) {
    TilePlace const at = TilePlace::of<kRole>(p, x.tensor, static_cast<std::int32_t>(first_tile + j));
    rows.fetch(at, rows.listed(at));
    bool finite = true;
    Row<kWidth, 1> row = rows.read(&finite);
    rows.template transform<Sweep::amax, true>(row, finite, at);
    __syncthreads();  // the tile before has been used
    row.for_each([&](int c) {
      smem.tile.element(c, static_cast<int>(threadIdx.x)) = static_cast<std::int8_t>(core::rint_small(row.x[c] * inverse));
    });
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < TransposedTile<kWidth>::kChunks; chunk += 2) {
      uint4 a[kMTiles];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) a[m] = smem.tile.matrices(warp_channel + 16 * m, chunk, true);
#pragma unroll
      for (int n = 0; n < kNTiles; n += 2) {
        uint4 const b = smem.tile.matrices(8 * n, chunk, false);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          ptx::mma_s8(sums[m][n], a[m], b.x, b.y);
          ptx::mma_s8(sums[m][n + 1], a[m], b.z, b.w);
        }
      }
    }
  }
  std::int32_t* const moment = x.moment + std::int64_t{head} * kWidth * kWidth;
  int const g = lane_index() / 4;
  int const t = lane_index() % 4;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const row = warp_channel + 16 * m + 8 * (i / 2) + g;
        atomicAdd(moment + row * kWidth + 8 * n + 2 * t + i % 2, sums[m][n][i]);
      }
    }
  }
}

inline constexpr int kFeedbackThreads = 1024;

/// What the threads that hold a matrix tell each other.
template <int kWidth>
struct FeedbackSmem {
  double diagonal[kWidth];
  double trace;
  float row[kWidth];
  float column[2][kWidth];      // of even and odd steps: one barrier less
  float w[kWidth][kWidth + 1];  // W transposed, below the diagonal; one column more than needed: a column lies in many banks
};

/// Rows 0 .. rows - 1 of column k of a matrix whose elements the threads of a CTA hold as feedback_kernel's do.
template <int kOwn>
__device__ __forceinline__ void publish(float const (&h)[kOwn][kOwn], int k, int rows, float* column) {
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    if (lane_index() + kLanes * b != k) continue;
#pragma unroll
    for (int a = 0; a <= b; ++a) {
      int const i = warp_index() + kLanes * a;
      if (i < rows) column[i] = h[a][b];
    }
  }
}

/// The feedback of a KV head from the moments of `group` heads of the other operand. One CTA a KV head. The arithmetic is feedback_of()'s.
/// Every thread holds a few elements of the matrix: warp d rows d, d + 32, ..., lane c columns c, c + 32, ...
template <int kWidth>
__global__ void __launch_bounds__(kFeedbackThreads)
    feedback_kernel(std::int32_t const* moments, std::uint32_t const* amax, int group, std::byte* feedback) {
  constexpr int kOwn = kWidth / kLanes;
  static_assert(kFeedbackThreads == kLanes * kLanes);
  extern __shared__ uint4 memory[];
  auto& smem = *reinterpret_cast<FeedbackSmem<kWidth>*>(memory);
  int const across = lane_index();
  int const down = warp_index();
  std::int64_t const first_head = std::int64_t{blockIdx.x} * group;
  auto const for_own = [&](auto const& body) {  // body(i, j, own row, own column)
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
#pragma unroll
      for (int b = 0; b < kOwn; ++b) body(down + kLanes * a, across + kLanes * b, a, b);
    }
  };

  double sums[kOwn][kOwn] = {};
  for (int g = 0; g < group; ++g) {
    float const amax_of_head = __uint_as_float(amax[first_head + g]);
    if (amax_of_head < core::kAmaxFloor) continue;
    double const step = static_cast<double>(amax_of_head) / static_cast<double>(formats::kInt8Max);
    std::int32_t const* const moment = moments + (first_head + g) * kWidth * kWidth;
    for_own([&](int i, int j, int a, int b) { sums[a][b] += step * step * static_cast<double>(moment[i * kWidth + j]); });
  }
  for_own([&](int i, int j, int a, int b) {
    if (i == j) smem.diagonal[i] = sums[a][b];
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    double trace = 0.0;
    for (int i = 0; i < kWidth; ++i) trace += smem.diagonal[i];
    smem.trace = trace;
  }
  __syncthreads();
  bool const any = smem.trace > 0.0;
  if (any) {
    double const to_mean_of_one = kWidth / smem.trace;
    float h[kOwn][kOwn];
    for_own([&](int i, int j, int a, int b) {
      h[a][b] = static_cast<float>(sums[a][b] * to_mean_of_one);
      if (i == j) h[a][b] += kMomentDamping;
    });
    // What a warp need not look at is skipped by all of it: rows by a condition, column groups below the diagonal by the compiler.
    // H = U diag U^T
    for (int k = kWidth - 1; k > 0; --k) {
      auto& column = smem.column[k % 2];
      publish(h, k, k + 1, column);
      __syncthreads();
      if (threadIdx.x < k) smem.row[threadIdx.x] = column[threadIdx.x] / column[k];
      __syncthreads();
#pragma unroll
      for (int a = 0; a < kOwn; ++a) {
        int const i = down + kLanes * a;
        if (i >= k) continue;
        float const u = smem.row[i];
#pragma unroll
        for (int b = a; b < kOwn; ++b) {
          int const j = across + kLanes * b;
          if (j < k && (b > a || i <= j)) h[a][b] -= u * column[j];
          if (j == k) h[a][b] = u;
        }
      }
    }
    // W = U^-1: the element at (i, j) above the diagonal is W_ij, once k has come to j.
    for_own([&](int i, int j, int a, int b) {
      smem.w[i][j] = h[a][b];  // U
      h[a][b] = -h[a][b];
    });
    __syncthreads();
    for (int k = 1; k < kWidth - 1; ++k) {
      auto& column = smem.column[k % 2];
      publish(h, k, k, column);
      __syncthreads();
#pragma unroll
      for (int a = 0; a < kOwn; ++a) {
        int const i = down + kLanes * a;
        if (i >= k) continue;
        float const w = column[i];
#pragma unroll
        for (int b = a; b < kOwn; ++b) {
          int const j = across + kLanes * b;
          if (j > k) h[a][b] -= w * smem.w[k][j];
        }
      }
    }
    for_own([&](int i, int j, int a, int b) {
      if (i < j) smem.w[j][i] = h[a][b];
    });
  }
  __syncthreads();

  auto& tables = reinterpret_cast<FeedbackTables<kWidth>*>(feedback)[blockIdx.x];
  for (int f = down; f < kWidth; f += kLanes) {  // one warp a column of W
    int const begin = f / kShapedBlock * kShapedBlock;
    float largest = 0.0f;
    for (int d = across; any && d < begin; d += kLanes) largest = fmaxf(largest, fabsf(smem.w[f][d]));
    largest = __uint_as_float(warp_max(largest));
    bool const counts = largest >= core::kAmaxFloor;
    float const inverse = counts ? formats::kInt8Max / largest : 0.0f;
    if (across == 0) tables.descale[f] = (counts ? largest / formats::kInt8Max : 1.0f) / kErrorSteps;
    for (int d = across; d < kWidth; d += kLanes) {
      float const w = any && d < f ? smem.w[f][d] : 0.0f;
      tables.integers[f][d] = static_cast<std::int8_t>(d < begin ? core::rint_small(w * inverse) : 0.0f);
      if (d >= begin && d < begin + kShapedBlock) tables.within[begin / kShapedBlock][d - begin][f - begin] = w;
    }
  }
}

}  // namespace vcattn::preparation::cuda
