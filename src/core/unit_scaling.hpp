#pragma once

// Descales of E4M3 codes whose products count code units. FP64, per head; exact operations only, so that every back end agrees. [EQ-UNIT]

#include "core/config.hpp"

namespace vcattn::core {

/// Largest magnitude as [EQ-UNIT] takes it: 1 for a head that counts as zero.
VCATTN_HD constexpr double unit_amax(float amax) { return amax < kAmaxFloor ? 1.0 : static_cast<double>(amax); }

VCATTN_HD constexpr double abs_f64(double x) { return x < 0.0 ? -x : x; }

/// floor(log2(x)) of a positive normal number.
VCATTN_HD constexpr int floor_log2(double x) { return static_cast<int>(__builtin_bit_cast(std::uint64_t, x) >> 52) - 1023; }

/// 2^e, -1022 <= e <= 1023.
VCATTN_HD constexpr double power_of_two(int e) { return __builtin_bit_cast(double, static_cast<std::uint64_t>(e + 1023) << 52); }

/// Exponent-balanced K descale of a KV head: products stay inside the FP16 accumulator, both codes in the middle of their range.
VCATTN_HD constexpr float unit_key_descale(double amax_q, double amax_k, double codes_per_product, int query_code_max, int key_code_max) {
  double const product = amax_q * amax_k * abs_f64(codes_per_product);
  double const range = query_code_max * key_code_max;
  // floor(log2(slack) / 2), no less than 0; an infinite slack comes from a product that is no normal number.
  int const exponent = product > 0.0 && product <= range ? floor_log2(range / product) / 2 : 0;
  return static_cast<float>(amax_k / key_code_max * power_of_two(exponent));
}

struct UnitQuery {
  float multiplier;  // n
  float descale;
};

/// n and the Q descale of a query head.
VCATTN_HD constexpr UnitQuery unit_query(double amax_q, double codes_per_product, double key_descale, int query_code_max) {
  if (codes_per_product == 0.0) return {0.0f, static_cast<float>(amax_q / query_code_max)};
  double const needed = __builtin_ceil(amax_q * abs_f64(codes_per_product) * key_descale / query_code_max);
  double const n = needed > 1.0 ? needed : 1.0;
  return {static_cast<float>(n), static_cast<float>(n / (codes_per_product * key_descale))};
}

}  // namespace vcattn::core
