#pragma once

// Constants of one kernel instance. Host and device.

#include <cstddef>
#include <cstdint>

namespace vcattn::attention_sm90a {

/// Format in which the tensor core delivers the scores.
enum class Scores : std::uint8_t {
  f16,  // E4M3 codes with bounds that an FP16 accumulator cannot exceed [EQ-UNIT]
  f32,  // E4M3 codes
  s32,  // INT8 codes
};

/// How a score becomes an E4M3 code.
enum class Probabilities : std::uint8_t {
  lines,  // ExpCast: max(t, slope t + offset, 0)
  exp,    // exponential, then conversion
};

constexpr int kOneHotRows = 8;       // rows appended to a V tile: one wgmma column group
constexpr int kWindowTiles = 16;     // most key tiles between two promotions: K of the product that restores their means
constexpr int kTileKv = 128;         // keys per step, = rows of a prepared tile
constexpr int kLeastSplitGain = 24;  // key tiles by which the split of the last wave must shorten it; parts cost the time of about ten
constexpr int kWarpgroupRows = 64;   // query rows of a warpgroup, = M of wgmma
constexpr int kWarpgroupThreads = 128;

template <Scores kScoresFormat, Probabilities kProbabilitiesForm, int kHeadDimPadded>
struct TileConfig {
  static constexpr Scores kScores = kScoresFormat;
  static constexpr Probabilities kProbabilities = kProbabilitiesForm;
  static constexpr int kHeadDim = kHeadDimPadded;

  // FP16 scores take 32 registers and leave room for three warpgroups; 32-bit scores take 64.
  static constexpr int kConsumers = kScores == Scores::f16 ? 3 : 2;
  static constexpr int kTileQ = kConsumers * kWarpgroupRows;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroupThreads;
  // Two warpgroups leave room for the scores of the next tile beside the codes of this one.
  static constexpr bool kScoresFirst = kConsumers == 2;

  // A CTA is launched with the same number of registers for every thread (a multiple of 8); the warpgroups redistribute these.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = (kLaunchRegisters * (kConsumers + 1) - kProducerRegisters) / kConsumers;

  static constexpr int kStages = kScores == Scores::f16 ? 3 : 4;
  static constexpr int kMeanStages = 1;

  static constexpr int kScoreRegisters = kScores == Scores::f16 ? 32 : 64;
  static constexpr int kProbRegisters = 16;                // 64 codes
  static constexpr int kOutRegisters = kHeadDim / 2;       // FP32 accumulators of 64 rows x head_dim
  static constexpr int kAccRegisters = kOutRegisters + 4;  // and of the eight row-sum columns
  static constexpr int kValueRows = kHeadDim + kOneHotRows;

  static constexpr int kQueryBytes = kWarpgroupRows * kHeadDim;
  static constexpr int kKeyBytes = kTileKv * kHeadDim;
  static constexpr int kValueBytes = kHeadDim * kTileKv;
  static constexpr int kOneHotBytes = kOneHotRows * kTileKv;
  static constexpr int kMeanBoxBytes = kWindowTiles * 64 * 2;  // 64 channels of 16 means, FP16
  static constexpr int kMeanBytes = kMeanBoxBytes * (kHeadDim / 64);
  static constexpr std::size_t kPartBytes = std::size_t{kTileQ} * (4 * kHeadDim + 32);  // FP32 sums of a query tile, constants, row sums

  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(kScores == Scores::f16 || kTileQ == 128, "with 32-bit scores a query tile is one of the prepared layout, with one descale");
  static_assert(kWindowTiles == 2 * kOneHotRows && kWindowTiles == 16, "row sums of a window are the A operand of one k16 product");
  static_assert(kLeastSplitGain > kWindowTiles, "a CTA has key tiles of two split query tiles at most, and of none all");
  static_assert(kConsumerRegisters % 8 == 0 && kProducerRegisters % 8 == 0);
};

}  // namespace vcattn::attention_sm90a
