#pragma once

// Q and K: amax of a head, then codes. One CTA a tile of 128 rows.

#include <cmath>
#include <limits>

#include "core/unit_scaling.hpp"
#include "device/ptx/packed.cuh"
#include "formats/codes.hpp"
#include "prepare/cuda/row.cuh"
#include "prepare/cuda/shaping.cuh"

namespace vcattn::preparation::cuda {

using formats::CodeFormat;
using formats::kTileRows;

/// Two threads a row keep more of the device busy; shaped rounding decides the channels of a row one after another.
constexpr int threads_per_row(bool shaped) { return shaped ? 1 : 2; }
constexpr int tile_threads(int threads_per_row) { return static_cast<int>(kTileRows) * threads_per_row; }
constexpr int tile_warps(int threads_per_row) { return tile_threads(threads_per_row) / kLanes; }

__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kLanes; }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x) / kLanes; }

template <Role kRole>
VCATTN_HD OperandParams const& operand(KernelParams const& p) {
  return kRole == Role::query ? p.q : p.k;
}

/// What a sweep over rows is for.
enum class Sweep {
  means,  // of query tiles: not subtracted yet
  amax,
  codes,  // the last one: leaves the corrections of LSE and, where there are Q means, K in BF16 behind
};

/// Rows of tiles: fetched, then transformed.
template <DType kType, int kWidth, Role kRole, int kThreads>
class TileRows {
 public:
  using RowStageType = RowStage<kType, kWidth, kThreads>;
  using Smem = RowStageType[tile_warps(kThreads)];
  using RowType = Row<kWidth, kThreads>;

  __device__ __forceinline__ TileRows(KernelParams const& p, Smem& smem) : p_(p), stage_(smem[warp_index()]) {}

  /// Row of the tensor that the calling thread's row of a tile is.
  __device__ __forceinline__ int listed(TilePlace const& at) const {
    int const row = at.row + RowType::in_tile();
    if (kRole == Role::query || row >= at.rows) return row;
    return p_.k.permutation[at.list + row];
  }
  /// Starts to fetch a tile; listed: listed(at).
  __device__ __forceinline__ void fetch(TilePlace const& at, int listed) {
    int const first = RowStageType::kRows * warp_index();
    stage_.fetch(operand<kRole>(p_).tensor, p_.rope, at.origin, at.count() - first,
                 [&](int r) { return kRole == Role::query ? at.row + first + r : __shfl_sync(kAllLanes, listed, r * kThreads); });
  }
  /// The row as it is fetched.
  __device__ __forceinline__ RowType read(bool* finite) { return stage_.read(finite); }

  /// What comes before quantisation. kMeans: there may be Q means.
  template <Sweep kSweep, bool kMeans>
  __device__ __forceinline__ void transform(RowType& row, bool finite, TilePlace const& at) const {
    int const in_tile = RowType::in_tile();
    bool const valid = in_tile < at.count();
    if constexpr (kRole == Role::key) {
      if (!finite) p_.nonfinite[at.head_index] = 1;
      if (p_.k_mean_on != 0 && valid) row.subtract(p_.k_mean + at.head_index * kWidth);  // [EQ-KMEAN]
    } else if constexpr (kSweep == Sweep::codes) {
      float const product = row.dot(p_.k_mean + at.head_kv * kWidth);
      bool const counts = finite && p_.nonfinite[at.head_kv] == 0;
      if (valid && RowType::part() == 0) {
        p_.lse_correction[at.list + at.row + in_tile] = counts ? p_.softmax_scale * product : core::f32_from_bits(0x7FC00000u);
      }
    }
    if (p_.hadamard != 0) row.hadamard();
    if constexpr (kMeans && kRole == Role::query && kSweep != Sweep::means) {
      if (p_.q_mean != nullptr && valid) row.subtract(p_.q_mean + at.index * std::int64_t{kWidth});  // [EQ-QMEAN]
    }
    if constexpr (kMeans && kRole == Role::key && kSweep == Sweep::codes) {
      if (p_.k_high != nullptr) row.store_bf16(p_.k_high + (at.index * kTileRows + in_tile) * kWidth);
    }
  }

 private:
  KernelParams const& p_;
  RowStageType& stage_;
};

/// The tiles of a CTA, fetched one ahead.
template <DType kType, int kWidth, Role kRole, int kThreads>
class RowWalk {
 public:
  using Rows = TileRows<kType, kWidth, kRole, kThreads>;

  TileWalk<kRole> tiles;

  __device__ __forceinline__ RowWalk(KernelParams const& p, typename Rows::Smem& smem)
      : tiles(p, operand<kRole>(p).tensor), rows_(p, smem) {
    if (!tiles.more()) return;
    rows_.fetch(tiles.at, rows_.listed(tiles.at));
    next_listed_ = tiles.has_next() ? rows_.listed(tiles.next) : 0;
  }

  /// The row of this tile, after what comes before quantisation; starts to fetch the next one.
  template <Sweep kSweep, bool kMeans>
  __device__ __forceinline__ Row<kWidth, kThreads> transformed() {
    bool finite = true;
    Row<kWidth, kThreads> row = rows_.read(&finite);
    if (tiles.has_next()) rows_.fetch(tiles.next, next_listed_);
    rows_.template transform<kSweep, kMeans>(row, finite, tiles.at);
    return row;
  }

  /// The place in the list of the tile after the next one is read a tile ahead, so that nothing waits for it.
  __device__ __forceinline__ void step() {
    tiles.step();
    if (tiles.has_next()) next_listed_ = rows_.listed(tiles.next);
  }

 private:
  Rows rows_;
  int next_listed_;
};

/// Largest of values that are not negative, over a warp.
__device__ __forceinline__ std::uint32_t warp_max(float value) { return __reduce_max_sync(kAllLanes, __float_as_uint(value)); }

/// Raises *largest to the largest value of a warp.
__device__ __forceinline__ void raise(std::uint32_t* largest, float value) {
  std::uint32_t const of_warp = warp_max(value);
  if (lane_index() == 0) atomicMax(largest, of_warp);
}

inline constexpr int kAmaxThreads = threads_per_row(false);

template <DType kType, int kWidth>
struct AmaxSmem {
  RowStage<kType, kWidth, kAmaxThreads> stages[tile_warps(kAmaxThreads)];
};

template <DType kType, int kWidth, Role kRole>
__global__ void __launch_bounds__(tile_threads(kAmaxThreads), 2) amax_kernel(__grid_constant__ KernelParams const p) {
  extern __shared__ uint4 memory[];
  auto& smem = *reinterpret_cast<AmaxSmem<kType, kWidth>*>(memory);
  float largest = 0.0f;
  for (RowWalk<kType, kWidth, kRole, kAmaxThreads> walk(p, smem.stages); walk.tiles.more(); walk.step()) {
    largest = fmaxf(largest, walk.template transformed<Sweep::amax, false>().amax());
    if (!walk.tiles.ends_head()) continue;
    raise(operand<kRole>(p).amax + walk.tiles.at.head_index, largest);
    largest = 0.0f;
  }
}

/// Codes of the channels that a thread holds of a row.
template <int kWidth, int kThreads, CodeFormat kFormat>
struct CodeRow {
  using RowType = Row<kWidth, kThreads>;
  static constexpr int kBits = formats::code_bits(kFormat);
  static constexpr int kRunBytes = kChannelsPerLoad * kBits / 8;
  static constexpr int kRowBytes = kWidth * kBits / 8;
  static constexpr int kWords = RowType::kChannels * kBits / 32;
  static constexpr int kFactors = kFormat == CodeFormat::nvfp4 ? kWidth / core::kNvfp4Group : 0;
  std::uint32_t words[kWords];
  std::uint32_t factor_words[kFactors == 0 ? 1 : kFactors / 4];  // UE4M3 of the whole row

  /// Nearest codes; the row becomes code units, NVFP4: the values of the codes. A finite descale keeps 8-bit codes in range.
  __device__ __forceinline__ void encode(RowType& row, float inverse) {
    if constexpr (kFormat == CodeFormat::nvfp4) {
      ScaleFactor factors[kFactors];
      scale_factors(row, inverse, factors);
#pragma unroll
      for (int run = 0; run < RowType::kChannels / kChannelsPerLoad; ++run) {
        ScaleFactor const& factor = factors[run * kThreads * kChannelsPerLoad / core::kNvfp4Group];
        float x[kChannelsPerLoad];
        core::E2m1Magnitude magnitude[kChannelsPerLoad];
#pragma unroll
        for (int c = 0; c < kChannelsPerLoad; ++c) {
          float& value = row.x[run * kChannelsPerLoad + c];
          x[c] = value * factor.inverse;
          magnitude[c] = core::e2m1_magnitude(x[c]);
          value = magnitude[c].value * factor.value;  // its square is all that counts
        }
        words[run] = pack_e2m1x8(x, magnitude);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = encode4(row.x + 4 * i, inverse);
    }
  }

  /// The row to code units, and the scale factors of its groups.
  __device__ __forceinline__ void scale_factors(RowType& row, float inverse, ScaleFactor (&factors)[kWidth / core::kNvfp4Group]) {
    row.for_each([&](int c) { row.x[c] *= inverse; });
    if constexpr (kFormat != CodeFormat::nvfp4) return;
    constexpr int kOwn = core::kNvfp4Group / kThreads;  // channels of a group
#pragma unroll
    for (int g = 0; g < kFactors; ++g) {
      float amax = 0.0f;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) amax = fmaxf(amax, fabsf(row.x[g * kOwn + c]));
      if constexpr (kThreads == 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 1));
      factors[g] = ScaleFactor::of(amax);
      insert_byte(factor_words[g / 4], g % 4, factors[g].code);
    }
  }

  /// Squared norm of the values of the row's codes, in all threads of the row. row: as encode() or shape() leaves it.
  template <bool kValues>
  __device__ __forceinline__ float squared_norm(RowType const& row) const {
    if constexpr (kValues) {
      return row.squared_norm();
    } else if constexpr (kFormat == CodeFormat::int8) {  // integers below 2^24: FP32 sums of any order are exact too
      int sum = 0;
#pragma unroll
      for (std::uint32_t const word : words) sum = __dp4a(static_cast<int>(word), static_cast<int>(word), sum);
#pragma unroll
      for (int apart = 1; apart < kThreads; apart *= 2) sum += __shfl_xor_sync(kAllLanes, sum, apart);
      return static_cast<float>(sum);
    } else {
      RowType values;
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        ptx::Half2 const pair = ptx::unpack_e4m3x2(words[i / 2] >> (16 * (i % 2)));
        values.x[2 * i] = ptx::low_float(pair);
        values.x[2 * i + 1] = ptx::high_float(pair);
      }
      return values.squared_norm();
    }
  }

  /// to: [kWidth / 16]. NVFP4 only.
  __device__ __forceinline__ void store_factors(std::uint8_t* to) const {
    if (RowType::part() != 0) return;
    if constexpr (kFactors == 8) {
      __stcs(reinterpret_cast<uint2*>(to), make_uint2(factor_words[0], factor_words[1]));
    } else {
      __stcs(reinterpret_cast<std::uint32_t*>(to), factor_words[0]);
    }
  }

 private:
  __device__ __forceinline__ static std::uint32_t encode4(float const* x, float inverse) {
    if constexpr (kFormat == CodeFormat::e4m3) {
      return ptx::pack_e4m3x2(x[0] * inverse, x[1] * inverse) | ptx::pack_e4m3x2(x[2] * inverse, x[3] * inverse) << 16;
    } else {  // the low byte of x + 1.5 * 2^23 is the nearest integer
      std::uint32_t bits[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) bits[c] = core::f32_bits(x[c] * inverse + core::kRoundMagic);
      return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
    }
  }
};

/// Largest magnitude of the block of rows that the warp belongs to.
template <int kThreads>
__device__ __forceinline__ float block_amax(float of_thread, int block_log2, std::uint32_t (&of_warps)[tile_warps(kThreads)]) {
  std::uint32_t const of_warp = warp_max(of_thread);
  if (lane_index() == 0) of_warps[warp_index()] = of_warp;
  __syncthreads();
  int const warps = (kThreads << block_log2) / kLanes;
  return __uint_as_float(__reduce_max_sync(kAllLanes, of_warps[(warp_index() & -warps) | (lane_index() & (warps - 1))]));
}

template <DType kType, int kWidth, CodeFormat kFormat, bool kShaped>
struct CodesSmem {
  static constexpr int kThreads = threads_per_row(kShaped);
  static constexpr int kWarps = tile_warps(kThreads);
  using Codes = CodeRow<kWidth, kThreads, kFormat>;
  RowStage<kType, kWidth, kThreads> stages[kWarps];
  WarpBytes<Codes::kRowBytes, Codes::kRunBytes, kThreads> codes[kWarps];
  std::uint32_t amax[2][kWarps];
  ShapingSmem<kWidth, kShaped ? kWarps : 0> shaping;
};

template <DType kType, int kWidth, Role kRole, CodeFormat kFormat, bool kShaped>
__global__ void __launch_bounds__(tile_threads(threads_per_row(kShaped)), 2) codes_kernel(__grid_constant__ KernelParams const p) {
  extern __shared__ uint4 memory[];
  using Smem = CodesSmem<kType, kWidth, kFormat, kShaped>;
  using Codes = typename Smem::Codes;
  constexpr int kThreads = Smem::kThreads;
  constexpr bool kNvfp4 = kFormat == CodeFormat::nvfp4;
  using RowType = Row<kWidth, kThreads>;
  auto& smem = *reinterpret_cast<Smem*>(memory);
  OperandParams const& x = operand<kRole>(p);
  auto& warp_codes = smem.codes[warp_index()];
  float largest_norm = 0.0f;
  int shaped_head = -1;
  for (RowWalk<kType, kWidth, kRole, kThreads> walk(p, smem.stages); walk.tiles.more(); walk.step()) {
    RowType row = walk.template transformed<Sweep::codes, kNvfp4>();
    TilePlace const& at = walk.tiles.at;

    float descale;
    if (!kNvfp4 && x.block_log2 >= 0) {  // [EQ-AMAX]
      // Two sets of amax take turns: a warp that writes the next one has passed the barrier after the last reading of the other.
      descale = formats::descale_of(kFormat, block_amax<kThreads>(row.amax(), x.block_log2, smem.amax[at.index % 2]));
      int const first_thread = static_cast<int>(threadIdx.x) & -(kThreads << x.block_log2);
      if (static_cast<int>(threadIdx.x) == first_thread) x.descale[(at.index * kTileRows + RowType::in_tile()) >> x.block_log2] = descale;
    } else {
      descale = x.descale[at.head_index];
    }
    float inverse = 1.0f / descale;
    if (kFormat == CodeFormat::int8 && inverse == 0.0f) {  // a value beyond FP32: what clamping makes of x * 0
      row.for_each([&](int c) { row.x[c] = core::is_finite(row.x[c]) ? 0.0f : formats::kInt8Max; });
      inverse = 1.0f;
    }

    Codes codes;
    if constexpr (kShaped) {  // [EQ-SHAPED]
      if (at.head_kv != shaped_head) {
        __syncthreads();
        smem.shaping.load(x.feedback + at.head_kv * sizeof(FeedbackTables<kWidth>));
        __syncthreads();
        shaped_head = at.head_kv;
      }
      ScaleFactor factors[kWidth / core::kNvfp4Group];
      codes.scale_factors(row, inverse, factors);
      shape<kFormat>(row, x.limit, factors, smem.shaping, codes.words);
    } else {
      codes.encode(row, inverse);
    }
    std::int64_t const first_row = at.index * kTileRows;
    warp_codes.store(codes.words, x.codes + (first_row + warp_codes.kRows * warp_index()) * Codes::kRowBytes);
    if constexpr (kNvfp4) codes.store_factors(x.scale_factors + (first_row + RowType::in_tile()) * Codes::kFactors);

    // [EQ-BOUND]
    float const square = codes.template squared_norm < kShaped || kNvfp4 > (row);
    largest_norm = fmaxf(largest_norm, sqrtf(fmaxf(square, 0.0f)) * fabsf(descale));
    if (!walk.tiles.ends_head()) continue;
    raise(x.norm + at.head_index, largest_norm);
    largest_norm = 0.0f;
  }
}

/// Descales that cover a whole head. One thread a KV head.
__global__ void head_descales_kernel(__grid_constant__ KernelParams const p, std::int64_t heads, CodeFormat format, int query_code_max) {
  std::int64_t const head_kv = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (head_kv >= heads) return;
  int const group = p.num_heads / p.num_heads_kv;
  float const amax_k = __uint_as_float(p.k.amax[head_kv]);
  std::uint32_t const* const amax_q = p.q.amax + head_kv * group;
  float key_descale = formats::descale_of(format, amax_k);
  double const codes_per_product = static_cast<double>(p.codes_per_product);
  if (p.unit != 0) {  // [EQ-UNIT]
    std::uint32_t largest_q = 0;
    for (int g = 0; g < group; ++g) largest_q = max(largest_q, amax_q[g]);
    key_descale = core::unit_key_descale(core::unit_amax(__uint_as_float(largest_q)), core::unit_amax(amax_k), codes_per_product,
                                         query_code_max, formats::kUnitKeyCodeMax);
  }
  p.k.descale[head_kv] = key_descale;
  for (int g = 0; g < group; ++g) {
    float const amax = __uint_as_float(amax_q[g]);
    core::UnitQuery q{p.codes_per_product, formats::descale_of(format, amax)};
    if (p.unit != 0) q = core::unit_query(core::unit_amax(amax), codes_per_product, static_cast<double>(key_descale), query_code_max);
    p.q.descale[head_kv * group + g] = q.descale;
    p.score_multiplier[head_kv * group + g] = q.multiplier;
  }
}

/// Bounds of the scores. One thread a query head. [EQ-BOUND]
__global__ void score_bounds_kernel(__grid_constant__ KernelParams const p, std::int64_t heads) {
  std::int64_t const head = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (head >= heads) return;
  float const key_norm = __uint_as_float(p.k.norm[head / (p.num_heads / p.num_heads_kv)]);
  float const m = core::abs_f32(p.codes_per_product);
  float bound = m * __uint_as_float(p.q.norm[head]) * key_norm;
  if (p.q_mean != nullptr) bound += m * __uint_as_float(p.q_mean_norm[head]) * key_norm;
  p.score_bound[head] = bound;
  p.score_variant[head] = bound <= p.f16_bound ? formats::ScoreVariant::f16 : formats::ScoreVariant::f32;
  if (p.q.block_log2 >= 0) p.score_multiplier[head] = p.codes_per_product;
}

}  // namespace vcattn::preparation::cuda
