#pragma once

// Operands of the proof: from fixed seeds, the same on every machine, so that only results need to be stored.

#include <cstdint>
#include <string_view>
#include <vector>

namespace vcattn::emulator::proof {

/// splitmix64.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  std::uint32_t word() { return static_cast<std::uint32_t>(next() >> 32); }
  std::uint32_t below(std::uint32_t count) { return static_cast<std::uint32_t>((std::uint64_t{word()} * count) >> 32); }
  bool one_in(std::uint32_t count) { return below(count) == 0; }

 private:
  std::uint64_t state_;
};

/// Kinds of operands and results, one letter each:
/// r, d, h: integers of 32, 64 and 16 bits; s: a shift; l: a lane; p: a predicate;
/// f: FP32; c: FP32 close to minus the product (or the only one) of the operands before it; g: FP32 of moderate size; F: FP64;
/// x: two FP16; X: one FP16; y: two BF16; B: one BF16; Y: two BF16 of moderate size; e: two E4M3.
/// The bits of one operand, special values included. before: those of the same thread.
std::uint64_t operand(char kind, Numbers& numbers, std::vector<std::uint64_t> const& before);

/// Contents of a matrix of 8-bit codes or of FP16 numbers; `theme` picks the distribution, any number will do.
inline constexpr std::uint32_t kThemes = 9;
std::uint8_t e4m3_code(std::uint32_t theme, Numbers& numbers);
std::uint16_t half_number(std::uint32_t theme, Numbers& numbers);
/// Accumulators of a matrix product: FP32, and two FP16.
inline constexpr std::uint32_t kSumThemes = 7;
std::uint32_t float_sum(std::uint32_t theme, Numbers& numbers);
std::uint32_t half_sums(std::uint32_t theme, Numbers& numbers);

}  // namespace vcattn::emulator::proof
