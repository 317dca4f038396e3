#pragma once

// Number formats by definition: every representable value is listed, and encoding looks for the nearest one. Shares nothing with core/.

#include <cstdint>
#include <vector>

namespace vcattn::reference {

/// A sign, exponent and mantissa format. Its non-negative values ascend with their codes, so a list of them is the whole format.
class FloatFormat {
 public:
  enum class Overflow { saturate, infinity };

  /// finite_codes: number of non-negative finite values. nan_code: code of NaN without its sign.
  FloatFormat(int exponent_bits, int mantissa_bits, std::uint32_t finite_codes, std::uint32_t nan_code, Overflow overflow);

  double decode(std::uint32_t code) const;
  /// Nearest value, ties to the even code; infinity saturates or stays, as the format says. NaN gives nan_code with the sign of x.
  std::uint32_t encode(double x) const;
  double round(double x) const { return decode(encode(x)); }

  double largest() const { return values_[finite_codes_ - 1]; }
  std::uint32_t finite_codes() const { return finite_codes_; }

 private:
  std::uint32_t nearest(double magnitude) const;

  int magnitude_bits_;
  std::uint32_t finite_codes_;
  std::uint32_t nan_code_;
  Overflow overflow_;
  std::vector<double> values_;  // [finite_codes + 1]: the last one is where the format would go on, the other side of the last midpoint
};

FloatFormat const& e4m3();  ///< [EQ-E4M3]
FloatFormat const& e2m1();  ///< [EQ-E2M1] has no NaN: callers never hand one
FloatFormat const& bf16();
FloatFormat const& fp16();

/// UE4M3: E4M3 without a sign, negative values give 0.
std::uint32_t ue4m3_encode(double x);

/// Nearest integer, ties to even.
double round_to_even(double x);

}  // namespace vcattn::reference
