#pragma once

// Sums of E4M3 products as the tensor core of sm_90 forms them (wgmma, measured on an H200): short, and truncated.

#include <cstdint>
#include <vector>

#include "reference/problem_rows.hpp"

namespace vcattn::reference {

/// E4M3 values as significand * 2^(exponent - 3): 8 <= abs(significand) <= 15, subnormals fewer at exponent -6. Row-major.
struct SplitRows {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::int32_t> significand, exponent;
};
SplitRows split_e4m3(Matrix const& values);

enum class Accumulator : std::uint8_t { fp16, fp32 };

/// Dot product of two rows, 32 channels a step. Per step the products and the accumulator are truncated towards zero to 13 fraction bits
/// below the largest exponent among them (of a product: the sum of its operands' exponents), and added. An FP16 accumulator is then rounded
/// to FP16, an FP32 accumulator truncated to 13 fraction bits below its own exponent.
double sm90_dot(SplitRows const& a, std::int64_t row_a, SplitRows const& b, std::int64_t row_b, Accumulator accumulator);

}  // namespace vcattn::reference
