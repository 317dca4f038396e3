#pragma once

// Shared memory of one CTA.

#include "attention/sm90a/scheduler.cuh"
#include "attention/sm90a/tile_config.hpp"
#include "device/ptx/async_copy.cuh"

namespace vcattn::attention_sm90a {

constexpr int kSmemAlignment = 1024;  // of a 128-byte swizzle pattern
constexpr int kSmemLimit = 232448;    // bytes a CTA may have on sm_90

/// Barriers come in pairs: `full` is completed by the copy engine, `empty` by the consumers.
/// | barrier                | arrivals                     | who waits           |
/// |------------------------|------------------------------|---------------------|
/// | q_full[w]              | 1 (producer) and the bytes   | warpgroup w         |
/// | q_empty[w]             | 4 (warps of warpgroup w)     | producer            |
/// | kv_full, mean_full[s]  | 1 (producer) and the bytes   | all consumers       |
/// | kv_empty, mean_empty[s]| 4 per consumer warpgroup     | producer            |
template <class C>
struct Barriers {
  ptx::Barrier q_full[C::kConsumers], q_empty[C::kConsumers];
  ptx::Barrier kv_full[C::kStages], kv_empty[C::kStages];
  ptx::Barrier mean_full[C::kMeanStages], mean_empty[C::kMeanStages];
};

template <class C>
struct alignas(kSmemAlignment) SmemLayout {
  std::uint8_t q[C::kConsumers][C::kQueryBytes];  // [64 rows][head_dim], swizzled
  // Stage n holds what step n of a consumer multiplies: K(n) and V(n - 1).
  std::uint8_t k[C::kStages][C::kKeyBytes];                             // [128 keys][head_dim], swizzled
  std::uint8_t v[C::kStages][C::kValueBytes + C::kOneHotBytes];         // [head_dim + 8][128 slots], swizzled; the last rows one-hot
  std::uint8_t means[C::kMeanStages][C::kMeanBytes];                    // [head_dim / 64][16 means][64 channels] FP16, swizzled
  float4 out[C::kOutRegisters / 4][C::kConsumers * kWarpgroupThreads];  // promoted accumulators, private to each thread
  Barriers<C> barriers;
  LastWave last_wave;
};

template <class C>
constexpr std::size_t smem_bytes() {
  static_assert(sizeof(SmemLayout<C>) <= kSmemLimit, "shared memory");
  return sizeof(SmemLayout<C>);
}

}  // namespace vcattn::attention_sm90a
