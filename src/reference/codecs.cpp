#include "reference/codecs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vcattn::reference {

FloatFormat::FloatFormat(int exponent_bits, int mantissa_bits, std::uint32_t finite_codes, std::uint32_t nan_code, Overflow overflow)
    : magnitude_bits_(exponent_bits + mantissa_bits), finite_codes_(finite_codes), nan_code_(nan_code), overflow_(overflow) {
  int const bias = (1 << (exponent_bits - 1)) - 1;
  for (std::uint32_t code = 0; code <= finite_codes; ++code) {
    int const exponent = static_cast<int>(code >> mantissa_bits);
    double const fraction = std::ldexp(static_cast<double>(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    values_.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
  }
}

double FloatFormat::decode(std::uint32_t code) const {
  std::uint32_t const magnitude = code & ((1u << magnitude_bits_) - 1);
  double value = std::numeric_limits<double>::quiet_NaN();
  if (magnitude < finite_codes_) value = values_[magnitude];
  if (magnitude == finite_codes_ && overflow_ == Overflow::infinity) value = std::numeric_limits<double>::infinity();
  return (code >> magnitude_bits_) & 1u ? -value : value;
}

std::uint32_t FloatFormat::encode(double x) const {
  std::uint32_t const sign = std::signbit(x) ? 1u << magnitude_bits_ : 0u;
  return sign | (std::isnan(x) ? nan_code_ : nearest(std::abs(x)));
}

std::uint32_t FloatFormat::nearest(double magnitude) const {
  std::uint32_t const last = overflow_ == Overflow::saturate ? finite_codes_ - 1 : finite_codes_;
  if (magnitude >= values_[last]) return last;
  auto const above = std::upper_bound(values_.begin(), values_.end(), magnitude);
  auto const high = static_cast<std::uint32_t>(above - values_.begin());
  std::uint32_t const low = high - 1;
  double const midpoint = (values_[low] + values_[high]) / 2;  // exact: both have few bits
  if (magnitude == midpoint) return low % 2 == 0 ? low : high;
  return magnitude < midpoint ? low : high;
}

FloatFormat const& e4m3() {
  static FloatFormat const format(4, 3, 0x7F, 0x7F, FloatFormat::Overflow::saturate);
  return format;
}

FloatFormat const& e2m1() {
  static FloatFormat const format(2, 1, 8, 7, FloatFormat::Overflow::saturate);
  return format;
}

FloatFormat const& bf16() {
  static FloatFormat const format(8, 7, 0x7F80, 0x7FC0, FloatFormat::Overflow::infinity);
  return format;
}

FloatFormat const& fp16() {
  static FloatFormat const format(5, 10, 0x7C00, 0x7E00, FloatFormat::Overflow::infinity);
  return format;
}

std::uint32_t ue4m3_encode(double x) { return x < 0 ? 0u : e4m3().encode(x) & 0x7Fu; }

double round_to_even(double x) { return std::nearbyint(x); }

}  // namespace vcattn::reference
