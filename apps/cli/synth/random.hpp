#pragma once

// Counter-based random numbers: every value is a pure function of (seed, stream, index), in exact arithmetic, so that a file is the same on
// every machine and can be written as a stream.

#include <cstdint>

namespace vcattn::cli {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that mixes all bits.
constexpr std::uint64_t mix_bits(std::uint64_t word) {
  word += 0x9E3779B97F4A7C15u;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

class RandomStream {
 public:
  constexpr RandomStream(std::uint64_t seed, std::uint64_t stream) : key_(mix_bits(mix_bits(seed) ^ stream)) {}

  constexpr std::uint64_t bits(std::uint64_t index) const { return mix_bits(key_ ^ mix_bits(index)); }

  /// In [0, 1), a multiple of 2^-24.
  constexpr float uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 40) * 0x1p-24f; }

  /// Mean 0, variance 1: the sum of four uniform 16-bit numbers (Irwin-Hall), |value| < 3.47. Needs no transcendental function.
  constexpr float normal(std::uint64_t index) const {
    std::uint64_t const word = bits(index);
    auto const sum = static_cast<std::int32_t>((word & 0xFFFFu) + ((word >> 16) & 0xFFFFu) + ((word >> 32) & 0xFFFFu) + (word >> 48));
    constexpr std::int32_t kTwiceMean = 4 * 65535;
    constexpr float kHalfInverseDeviation = 0x1p-17f * 1.7320508f;  // variance of the sum: 4 * 65536^2 / 12
    return static_cast<float>(2 * sum - kTwiceMean) * kHalfInverseDeviation;
  }

 private:
  std::uint64_t key_;
};

}  // namespace vcattn::cli
