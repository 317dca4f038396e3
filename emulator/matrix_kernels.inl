// Matrix products as the tensor core of sm_90 forms them, and in plain FP32. Compiled once per instruction set (VCATTN_ISA); the loops over
// columns become vector code.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "emulator/matrix_kernels.hpp"

namespace vcattn::emulator::VCATTN_ISA {

namespace {

#include "emulator/numbers.inl"

constexpr int kStep = 32;             // products of one step of the FP8 tensor core
constexpr int kFractionBits = 13;     // below the largest exponent of a step
constexpr int kHalfFractionBits = 25;  // the same for FP16 operands
constexpr int kNoExponent = -1000;

/// E4M3: magnitude * 2^(exponent - 3), magnitude 8..15, subnormals fewer.
struct Code {
  std::int32_t magnitude, exponent, negative;
  float value;
  bool nan;
};

constexpr std::array<Code, 256> make_codes() {
  std::array<Code, 256> codes{};
  for (std::uint32_t c = 0; c < 256; ++c) {
    auto const field = static_cast<int>((c >> 3) & 15u);
    int const fraction = static_cast<int>(c & 7u);
    int const magnitude = field == 0 ? fraction : 8 + fraction;
    int const exponent = field == 0 ? -6 : field - 7;
    double value = magnitude;
    for (int e = exponent - 3; e > 0; --e) value *= 2;
    for (int e = exponent - 3; e < 0; ++e) value /= 2;
    bool const negative = c >= 128;
    codes[c] = {magnitude, magnitude == 0 ? kNoExponent : exponent, negative ? -1 : 0, static_cast<float>(negative ? -value : value), (c & 127u) == 127u};
  }
  return codes;
}
constexpr std::array<Code, 256> kCodes = make_codes();

/// The columns of B, channel by channel.
struct Columns {
  alignas(64) std::int32_t magnitude[kStep][kMaxColumns];  // shifted to the fraction bits of a product
  alignas(64) std::int32_t exponent[kStep][kMaxColumns];
  alignas(64) std::int32_t negative[kStep][kMaxColumns];
  bool nan[kMaxColumns];
};

void load_columns(Columns& columns, std::uint8_t const* b, int n) {
  for (int c = 0; c < n; ++c) columns.nan[c] = false;
  for (int c = 0; c < n; ++c) {
    for (int k = 0; k < kStep; ++k) {
      Code const& code = kCodes[b[c * kStep + k]];
      columns.magnitude[k][c] = code.magnitude << (kFractionBits - 6);
      columns.exponent[k][c] = code.exponent;
      columns.negative[k][c] = code.negative;
      columns.nan[c] = columns.nan[c] || code.nan;
    }
  }
}

float power_of_two(std::int32_t exponent) { return number(static_cast<std::uint32_t>(exponent + 127) << 23); }

/// One row: products and accumulator are truncated to 13 fraction bits below the largest exponent among them, and added. An FP16 sum is
/// rounded, an FP32 sum truncated to 13 fraction bits of its own.
void multiply_row(std::uint8_t const* a, Columns const& columns, int n, bool f16, float* d) {
  alignas(64) std::int32_t largest[kMaxColumns];
  alignas(64) std::int32_t sum[kMaxColumns];
  for (int c = 0; c < n; ++c) {
    auto const exponent = static_cast<std::int32_t>((bits(d[c]) >> 23) & 255u);
    largest[c] = exponent == 0 ? kNoExponent : exponent - 127;
  }
  for (int k = 0; k < kStep; ++k) {
    Code const& code = kCodes[a[k]];
    if (code.magnitude == 0) continue;
    for (int c = 0; c < n; ++c) largest[c] = std::max(largest[c], code.exponent + columns.exponent[k][c]);
  }
  for (int c = 0; c < n; ++c) {
    std::int32_t const shift = std::min(kFractionBits - std::max(largest[c], -100), 126);
    float const aligned = d[c] * power_of_two(std::max(shift, -126));
    sum[c] = static_cast<std::int32_t>(std::abs(aligned) < 32768.0f ? aligned : 0.0f);
  }
  for (int k = 0; k < kStep; ++k) {
    Code const& code = kCodes[a[k]];
    if (code.magnitude == 0) continue;
    for (int c = 0; c < n; ++c) {
      std::int32_t const shift = std::min(largest[c] - (code.exponent + columns.exponent[k][c]), 31);
      std::int32_t const magnitude = (code.magnitude * columns.magnitude[k][c]) >> (shift & 31);
      std::int32_t const negative = code.negative ^ columns.negative[k][c];
      sum[c] += (magnitude ^ negative) - negative;
    }
  }
  for (int c = 0; c < n; ++c) {
    bool const finite = (bits(d[c]) & 0x7F800000u) != 0x7F800000u;
    std::int32_t const exponent = std::max(largest[c], -100) - kFractionBits;
    float const exact = static_cast<float>(sum[c]);
    float const rounded = f16 ? from_half(to_half(exact * power_of_two(std::clamp(exponent, -126, 127))))
                              : number(bits(exact) & ~((1u << (23 - kFractionBits)) - 1u)) * power_of_two(std::clamp(exponent, -126, 127));
    d[c] = finite ? (largest[c] == kNoExponent ? 0.0f : rounded) : d[c];
  }
}

bool has_nan(std::uint8_t const* a) {
  return std::any_of(a, a + kStep, [](std::uint8_t c) { return kCodes[c].nan; });
}

void multiply_e4m3_exact(std::uint8_t const* a, std::uint8_t const* b, int n, bool f16, float* d) {
  Columns columns;
  load_columns(columns, b, n);
  for (int i = 0; i < kWarpRows; ++i) {
    float* row = d + i * n;
    multiply_row(a + i * kStep, columns, n, f16, row);
    bool const nan = has_nan(a + i * kStep);
    for (int c = 0; c < n; ++c) {
      if (nan || columns.nan[c] || row[c] != row[c]) row[c] = number(kNan32);
    }
  }
}

/// FP32 sums in the order of the channels.
void multiply_e4m3_fast(std::uint8_t const* a, std::uint8_t const* b, int n, bool f16, float* d) {
  alignas(64) float columns[kStep][kMaxColumns];
  for (int c = 0; c < n; ++c) {
    for (int k = 0; k < kStep; ++k) {
      Code const& code = kCodes[b[c * kStep + k]];
      columns[k][c] = code.nan ? number(kNan32) : code.value;
    }
  }
  for (int i = 0; i < kWarpRows; ++i) {
    float* row = d + i * n;
    for (int k = 0; k < kStep; ++k) {
      Code const& code = kCodes[a[i * kStep + k]];
      float const x = code.nan ? number(kNan32) : code.value;
      for (int c = 0; c < n; ++c) row[c] = std::fma(x, columns[k][c], row[c]);
    }
    if (f16) {
      for (int c = 0; c < n; ++c) row[c] = from_half(to_half(row[c]));
    }
  }
}

/// Toward zero, to FP32.
float truncated(double x) {
  auto const r = static_cast<float>(x);
  return std::abs(static_cast<double>(r)) > std::abs(x) ? std::nextafter(r, 0.0f) : r;
}

/// As the FP8 product, with more fraction bits, 16 products a step, and a sum that is truncated to FP32.
void multiply_f16_exact(std::uint16_t const* a, std::uint16_t const* b, int n, float* d) {
  constexpr int kHalfStep = 16;
  for (int i = 0; i < kWarpRows; ++i) {
    float x[kHalfStep];
    for (int k = 0; k < kHalfStep; ++k) x[k] = from_half(a[i * kHalfStep + k]);
    for (int c = 0; c < n; ++c) {
      double terms[kHalfStep + 1];
      terms[kHalfStep] = static_cast<double>(d[i * n + c]);
      double plain = terms[kHalfStep];
      for (int k = 0; k < kHalfStep; ++k) {
        terms[k] = static_cast<double>(x[k]) * static_cast<double>(from_half(b[k * n + c]));
        plain += terms[k];
      }
      if (!(std::abs(plain) <= 0x1p127)) {
        d[i * n + c] = plain != plain ? number(kNan32) : static_cast<float>(plain);
        continue;
      }
      // Exponents of products are those of their operands, which a product of significands of 2 or more passes by one.
      int largest = kNoExponent;
      for (int k = 0; k <= kHalfStep; ++k) {
        if (terms[k] == 0.0) continue;
        int const exponent = k == kHalfStep ? std::ilogb(terms[k]) : std::ilogb(x[k]) + std::ilogb(from_half(b[k * n + c]));
        largest = std::max(largest, exponent);
      }
      if (largest == kNoExponent) {
        d[i * n + c] = 0.0f;
        continue;
      }
      std::int64_t sum = 0;
      for (double const term : terms) sum += static_cast<std::int64_t>(std::ldexp(term, kHalfFractionBits - largest));
      d[i * n + c] = truncated(std::ldexp(static_cast<double>(sum), largest - kHalfFractionBits));
    }
  }
}

void multiply_f16_fast(std::uint16_t const* a, std::uint16_t const* b, int n, float* d) {
  constexpr int kHalfStep = 16;
  for (int i = 0; i < kWarpRows; ++i) {
    for (int k = 0; k < kHalfStep; ++k) {
      float const x = from_half(a[i * kHalfStep + k]);
      for (int c = 0; c < n; ++c) d[i * n + c] = std::fma(x, from_half(b[k * n + c]), d[i * n + c]);
    }
  }
}

void multiply_s8(std::uint8_t const* a, std::uint8_t const* b, int n, std::int32_t* d) {
  alignas(64) std::int32_t columns[kStep][kMaxColumns];
  for (int c = 0; c < n; ++c) {
    for (int k = 0; k < kStep; ++k) columns[k][c] = static_cast<std::int8_t>(b[c * kStep + k]);
  }
  for (int i = 0; i < kWarpRows; ++i) {
    for (int k = 0; k < kStep; ++k) {
      std::int32_t const x = static_cast<std::int8_t>(a[i * kStep + k]);
      for (int c = 0; c < n; ++c) {
        d[i * n + c] = static_cast<std::int32_t>(static_cast<std::uint32_t>(d[i * n + c]) + static_cast<std::uint32_t>(x * columns[k][c]));
      }
    }
  }
}

}  // namespace

MatrixKernels matrix_kernels() { return {multiply_e4m3_exact, multiply_e4m3_fast, multiply_f16_exact, multiply_f16_fast, multiply_s8}; }

}  // namespace vcattn::emulator::VCATTN_ISA
