#include "synth/video_scene.hpp"

#include <cmath>
#include <limits>

namespace vcattn::cli {
namespace {

// Streams of random numbers; a head adds its index in the upper bits.
enum Stream : std::uint64_t {
  kValueMean = 1,
  kKeyOffset,
  kKeyGain,
  kValueFields,
  kScoreFields,
  kValueKinds,
  kScoreKinds,
  kLattice,
  kCells,
  kNoise,
  kOutliers,
};

// Shares of the value energy about its mean, per channel; noise has the rest. Chosen so that means of 128 rows remove about 8 % in sequence
// order and 36 % after k-means (64 clusters, 14,040 tokens), as published for Wan2.2.
constexpr float kValueFieldShare = 0.19f;
constexpr float kValueKindShare = 0.39f;
constexpr float kValueMeanDeviation = 0.16f;  // of the channel's own deviation

// Deviations of the parts of q and k; scores then have a standard deviation of about 2.6 nats.
constexpr float kScoreField = 0.5f;
constexpr float kScoreKind = 0.45f;
constexpr float kScoreNoise = 1.35f;

constexpr float kKeyOffsetOutlier = 8.0f;  // of one channel in 32; constant over tokens
constexpr float kKeyGainOutlier = 4.0f;    // of one channel in 64; scales what varies
constexpr float kOutlierTokens = 1.0f / 2048;
constexpr float kOutlierGain = 6.0f;

// Tokens between lattice points of the smooth fields, the first half of them wide; and extent of a segment.
constexpr std::array<float, 3> kWidePeriod{6.0f, 9.0f, 40.0f};
constexpr std::array<float, 3> kNarrowPeriod{6.0f, 5.0f, 5.0f};
constexpr std::array<float, 3> kSegmentExtent{8.0f, 2.5f, 2.5f};
constexpr float kSegmentSpeed = 0.35f;  // tokens per frame, along the width

constexpr double kRopeBase = 10000.0;

std::uint64_t stream_of(Stream stream, std::int64_t head) { return (static_cast<std::uint64_t>(head) << 8) | stream; }

/// Word for a point of a 3-D lattice.
std::uint64_t lattice_index(std::int64_t t, std::int64_t y, std::int64_t x, std::uint64_t salt) {
  auto const part = [](std::int64_t value) { return static_cast<std::uint64_t>(value) & 0xFFFFFu; };
  return (part(t) << 40 | part(y) << 20 | part(x)) ^ (salt << 60 | salt << 20);
}

std::vector<float> normals(RandomStream const& random, std::size_t count, float deviation) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = deviation * random.normal(i);
  return values;
}

float smooth_step(float x) { return x * x * (3.0f - 2.0f * x); }

}  // namespace

VideoScene::VideoScene(SceneConfig const& config) : config_(config) {
  auto const channels = static_cast<std::size_t>(config.head_dim);
  for (std::int64_t h = 0; h < config.num_heads; ++h) {
    auto const random = [&](Stream stream) { return RandomStream(config.seed, stream_of(stream, h)); };
    float const field_deviation = std::sqrt(1.0f / kFields);
    Head head;
    head.value_mean = normals(random(kValueMean), channels, kValueMeanDeviation);
    head.value_fields = normals(random(kValueFields), kFields * channels, std::sqrt(kValueFieldShare) * field_deviation);
    head.value_kinds = normals(random(kValueKinds), kSegmentKinds * channels, std::sqrt(kValueKindShare));
    head.score_fields = normals(random(kScoreFields), kFields * channels, kScoreField * field_deviation);
    head.score_kinds = normals(random(kScoreKinds), kSegmentKinds * channels, kScoreKind);
    for (std::size_t d = 0; d < channels; ++d) {
      head.key_offset.push_back((random(kKeyOffset).bits(d) % 32 == 0 ? kKeyOffsetOutlier : 0.5f) *
                                random(kKeyOffset).normal(d + channels));
      head.key_gain.push_back(random(kKeyGain).bits(d) % 64 == 0 ? kKeyGainOutlier : 1.0f);
    }
    heads_.push_back(std::move(head));
  }
  // Pairs are shared out as in Wan: width and height get a third each, time the rest.
  std::int64_t const third = config.head_dim / 2 / 3;
  std::array<std::int64_t, 3> const pairs{config.head_dim / 2 - 2 * third, third, third};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (std::int64_t i = 0; i < pairs[axis]; ++i) {
      frequencies_[axis].push_back(std::pow(kRopeBase, -static_cast<double>(i) / static_cast<double>(pairs[axis])));
    }
  }
}

VideoScene::Position VideoScene::position(std::int64_t token) const {
  return {token / (config_.rows * config_.columns), token / config_.columns % config_.rows, token % config_.columns};
}

/// Value noise of about unit variance: random numbers on a lattice, interpolated along the three axes.
float VideoScene::field(std::int64_t head, std::size_t index, Position const& at) const {
  RandomStream const random(config_.seed, stream_of(kLattice, head));
  auto const& period = index < kFields / 2 ? kWidePeriod : kNarrowPeriod;
  std::array<float, 3> const coordinate{static_cast<float>(at.t) / period[0], static_cast<float>(at.y) / period[1],
                                        static_cast<float>(at.x) / period[2]};
  std::array<std::int64_t, 3> corner;
  std::array<float, 3> weight;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    corner[axis] = static_cast<std::int64_t>(coordinate[axis]);
    weight[axis] = smooth_step(coordinate[axis] - static_cast<float>(corner[axis]));
  }
  float value = 0;
  float squared_weights = 0;
  for (std::int64_t dt = 0; dt < 2; ++dt) {
    for (std::int64_t dy = 0; dy < 2; ++dy) {
      for (std::int64_t dx = 0; dx < 2; ++dx) {
        float const share = (dt ? weight[0] : 1 - weight[0]) * (dy ? weight[1] : 1 - weight[1]) * (dx ? weight[2] : 1 - weight[2]);
        value += share * random.normal(lattice_index(corner[0] + dt, corner[1] + dy, corner[2] + dx, index));
        squared_weights += share * share;
      }
    }
  }
  return value / std::sqrt(squared_weights);
}

/// Kind of the nearest segment centre (jittered cells of a lattice that moves along the width): far segments share kinds, neighbours rarely
/// do.
std::size_t VideoScene::segment_kind(std::int64_t head, Position const& at) const {
  RandomStream const random(config_.seed, stream_of(kCells, head));
  std::array<float, 3> const point{static_cast<float>(at.t) / kSegmentExtent[0], static_cast<float>(at.y) / kSegmentExtent[1],
                                   (static_cast<float>(at.x) + kSegmentSpeed * static_cast<float>(at.t)) / kSegmentExtent[2]};
  std::array<std::int64_t, 3> cell;
  for (std::size_t axis = 0; axis < 3; ++axis) cell[axis] = static_cast<std::int64_t>(point[axis]);
  float nearest = std::numeric_limits<float>::infinity();
  std::uint64_t nearest_index = 0;
  for (std::int64_t dt = -1; dt <= 1; ++dt) {
    for (std::int64_t dy = -1; dy <= 1; ++dy) {
      for (std::int64_t dx = -1; dx <= 1; ++dx) {
        std::array<std::int64_t, 3> const candidate{cell[0] + dt, cell[1] + dy, cell[2] + dx};
        float distance = 0;
        for (std::size_t axis = 0; axis < 3; ++axis) {
          float const jitter = random.uniform(lattice_index(candidate[0], candidate[1], candidate[2], axis + 1));
          float const difference = static_cast<float>(candidate[axis]) + jitter - point[axis];
          distance += difference * difference;
        }
        if (distance < nearest) {
          nearest = distance;
          nearest_index = lattice_index(candidate[0], candidate[1], candidate[2], 0);
        }
      }
    }
  }
  return random.bits(nearest_index) % kSegmentKinds;
}

void VideoScene::value_row(std::int64_t token, std::int64_t head, std::span<float> out) const {
  Head const& model = heads_[static_cast<std::size_t>(head)];
  Position const at = position(token);
  std::size_t const channels = out.size();
  std::size_t const kind = segment_kind(head, at);
  RandomStream const noise(config_.seed, stream_of(kNoise, 4 * head + static_cast<std::int64_t>(Operand::v)));
  float const noise_deviation = std::sqrt(1.0f - kValueFieldShare - kValueKindShare);
  for (std::size_t d = 0; d < channels; ++d) {
    out[d] = model.value_mean[d] + model.value_kinds[kind * channels + d] +
             noise_deviation * noise.normal(static_cast<std::uint64_t>(token) * channels + d);
  }
  for (std::size_t f = 0; f < kFields; ++f) {
    float const amplitude = field(head, f, at);
    for (std::size_t d = 0; d < channels; ++d) out[d] += amplitude * model.value_fields[f * channels + d];
  }
  RandomStream const outliers(config_.seed, stream_of(kOutliers, head));
  if (outliers.uniform(static_cast<std::uint64_t>(token)) < kOutlierTokens) {
    std::size_t const first = outliers.bits(~static_cast<std::uint64_t>(token)) % channels;
    for (std::size_t d = 0; d < channels / 8; ++d) out[(first + d) % channels] *= kOutlierGain;
  }
}

void VideoScene::score_row(Operand operand, std::int64_t token, std::int64_t head, std::span<float> out) const {
  Head const& model = heads_[static_cast<std::size_t>(head)];
  Position const at = position(token);
  std::size_t const channels = out.size();
  std::size_t const kind = segment_kind(head, at);
  RandomStream const noise(config_.seed, stream_of(kNoise, 4 * head + static_cast<std::int64_t>(operand)));
  for (std::size_t d = 0; d < channels; ++d) {
    out[d] = model.score_kinds[kind * channels + d] + kScoreNoise * noise.normal(static_cast<std::uint64_t>(token) * channels + d);
  }
  for (std::size_t f = 0; f < kFields; ++f) {
    float const amplitude = field(head, f, at);
    for (std::size_t d = 0; d < channels; ++d) out[d] += amplitude * model.score_fields[f * channels + d];
  }
  if (operand == Operand::k) {
    for (std::size_t d = 0; d < channels; ++d) out[d] = model.key_gain[d] * out[d] + model.key_offset[d];
  }
  if (config_.rope) rotate(at, out);
}

void VideoScene::rotate(Position const& at, std::span<float> row) const {
  std::array<std::int64_t, 3> const coordinate{at.t, at.y, at.x};
  std::size_t pair = 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (double const frequency : frequencies_[axis]) {
      double const angle = frequency * static_cast<double>(coordinate[axis]);
      auto const cosine = static_cast<float>(std::cos(angle));
      auto const sine = static_cast<float>(std::sin(angle));
      float const x = row[2 * pair], y = row[2 * pair + 1];
      row[2 * pair] = x * cosine - y * sine;
      row[2 * pair + 1] = x * sine + y * cosine;
      ++pair;
    }
  }
}

void VideoScene::row(Operand operand, std::int64_t token, std::int64_t head, std::span<float> out) const {
  if (operand == Operand::v) {
    value_row(token, head, out);
  } else {
    score_row(operand, token, head, out);
  }
}

}  // namespace vcattn::cli
