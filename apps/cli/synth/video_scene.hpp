#pragma once

// Synthetic Q, K, V with the statistics of a video transformer's attention: smooth fields in space and time, small moving segments with
// value vectors of their own, per-channel means, a few outlier tokens, outlier channels of K.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "synth/random.hpp"

namespace vcattn::cli {

struct SceneConfig {
  std::int64_t frames = 0, rows = 0, columns = 0;  ///< tokens in time, height, width
  std::int64_t num_heads = 0, head_dim = 0;
  std::uint64_t seed = 0;
  bool rope = false;  ///< 3-D rotary embedding on q and k
};

enum class Operand : std::uint32_t { q, k, v };

/// Every token can be asked for on its own; memory does not depend on the number of tokens.
class VideoScene {
 public:
  explicit VideoScene(SceneConfig const& config);

  /// Row of q, k or v, head_dim numbers. token = (t * rows + y) * columns + x.
  void row(Operand operand, std::int64_t token, std::int64_t head, std::span<float> out) const;

 private:
  static constexpr std::size_t kFields = 8;
  static constexpr std::size_t kSegmentKinds = 32;

  struct Head {
    std::vector<float> value_mean;                  ///< [D]
    std::vector<float> key_offset, key_gain;        ///< [D]
    std::vector<float> value_fields, score_fields;  ///< [kFields, D]
    std::vector<float> value_kinds, score_kinds;    ///< [kSegmentKinds, D]
  };
  struct Position {
    std::int64_t t, y, x;
  };

  Position position(std::int64_t token) const;
  float field(std::int64_t head, std::size_t index, Position const& at) const;
  std::size_t segment_kind(std::int64_t head, Position const& at) const;
  void value_row(std::int64_t token, std::int64_t head, std::span<float> out) const;
  void score_row(Operand operand, std::int64_t token, std::int64_t head, std::span<float> out) const;
  void rotate(Position const& at, std::span<float> row) const;

  SceneConfig config_;
  std::vector<Head> heads_;
  std::array<std::vector<double>, 3> frequencies_;  ///< radians per token of the channel pairs of time, height, width
};

}  // namespace vcattn::cli
