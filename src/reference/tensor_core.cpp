#include "reference/tensor_core.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "reference/codecs.hpp"

namespace vcattn::reference {

namespace {

constexpr std::int64_t kStepChannels = 32;
constexpr int kFractionBits = 13;
constexpr int kMantissaBits = 3;
constexpr int kSmallestExponent = -6;  // of E4M3; subnormals keep it
constexpr int kNoExponent = std::numeric_limits<int>::min();

/// Products of one step: integers in units of 2^(exponent - 2 * kMantissaBits).
struct Products {
  std::int32_t significand[kStepChannels];
  std::int32_t exponent[kStepChannels];
};

int exponent_of(double x) { return x == 0 ? kNoExponent : std::ilogb(x); }

/// Products of a step and the accumulator, aligned, truncated and summed.
double add_step(double accumulator, Products const& products) {
  int largest = exponent_of(accumulator);
  for (std::int64_t c = 0; c < kStepChannels; ++c) {
    if (products.significand[c] != 0) largest = std::max(largest, products.exponent[c]);
  }
  if (largest == kNoExponent) return 0;
  auto sum = static_cast<std::int64_t>(std::ldexp(accumulator, kFractionBits - largest));  // truncates
  for (std::int64_t c = 0; c < kStepChannels; ++c) {
    int const shift = std::min(largest - products.exponent[c], 31);
    std::int32_t const magnitude = (std::abs(products.significand[c]) << (kFractionBits - 2 * kMantissaBits)) >> shift;
    sum += products.significand[c] < 0 ? -magnitude : magnitude;
  }
  return std::ldexp(static_cast<double>(sum), largest - kFractionBits);
}

double truncate(double x) {
  if (x == 0) return 0;
  int const shift = kFractionBits - exponent_of(x);
  return std::ldexp(std::trunc(std::ldexp(x, shift)), -shift);
}

}  // namespace

SplitRows split_e4m3(Matrix const& values) {
  SplitRows split{values.rows, values.cols, {}, {}};
  for (double const x : values.data) {
    int const exponent = std::max(exponent_of(x), kSmallestExponent);
    split.exponent.push_back(exponent);
    split.significand.push_back(static_cast<std::int32_t>(std::ldexp(x, kMantissaBits - exponent)));
  }
  return split;
}

double sm90_dot(SplitRows const& a, std::int64_t row_a, SplitRows const& b, std::int64_t row_b, Accumulator accumulator) {
  double sum = 0;
  for (std::int64_t first = 0; first < a.cols; first += kStepChannels) {
    auto const offset_a = static_cast<std::size_t>(row_a * a.cols + first);
    auto const offset_b = static_cast<std::size_t>(row_b * b.cols + first);
    Products products;
    for (std::size_t c = 0; c < kStepChannels; ++c) {
      products.significand[c] = a.significand[offset_a + c] * b.significand[offset_b + c];
      products.exponent[c] = a.exponent[offset_a + c] + b.exponent[offset_b + c];
    }
    sum = add_step(sum, products);
    sum = accumulator == Accumulator::fp16 ? fp16().round(sum) : truncate(sum);
  }
  return sum;
}

}  // namespace vcattn::reference
