// Matrix products as the tensor core of sm_90 forms them, and in plain FP32. Compiled once per instruction set (VCATTN_ISA); the loops over
// columns become vector code.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "emulator/matrix_kernels.hpp"

namespace vcattn::emulator::VCATTN_ISA {

namespace {

#include "emulator/numbers.inl"

constexpr int kStep = 32;              // products of one step of the FP8 tensor core
constexpr int kFractionBits = 13;      // below the largest exponent of a step
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
    bool const nan = (c & 127u) == 127u;
    auto const number = static_cast<float>(negative ? -value : value);
    codes[c] = {magnitude, magnitude == 0 ? kNoExponent : exponent, negative ? -1 : 0,
                nan ? std::numeric_limits<float>::quiet_NaN() : number, nan};
  }
  return codes;
}
constexpr std::array<Code, 256> kCodes = make_codes();

/// The columns of B, channel by channel.
struct Columns {
  alignas(64) std::int32_t magnitude[kStep][kMaxColumns];  // shifted to the fraction bits of a product
  alignas(64) std::int32_t exponent[kStep][kMaxColumns];
  alignas(64) std::int32_t negative[kStep][kMaxColumns];  // 0 or -1
  alignas(64) std::int32_t nan[kMaxColumns];              // 0 or -1
};

/// kCodes in vector code.
void load_columns(Columns& columns, std::uint8_t const* b, int n) {
  alignas(64) std::uint8_t codes[kStep][kMaxColumns];
  for (int c = 0; c < n; ++c) {
    for (int k = 0; k < kStep; ++k) codes[k][c] = b[c * kStep + k];
  }
  for (int c = 0; c < n; ++c) columns.nan[c] = 0;
  for (int k = 0; k < kStep; ++k) {
    for (int c = 0; c < n; ++c) {
      std::int32_t const code = codes[k][c];
      std::int32_t const field = (code >> 3) & 15;
      std::int32_t const magnitude = (code & 7) + (field == 0 ? 0 : 8);
      columns.magnitude[k][c] = magnitude << (kFractionBits - 6);
      columns.exponent[k][c] = magnitude == 0 ? kNoExponent : std::max(field, 1) - 7;
      columns.negative[k][c] = -(code >> 7);
      columns.nan[c] |= (code & 127) == 127 ? -1 : 0;
    }
  }
}

bool has_nan(std::uint8_t const* a) {
  return std::any_of(a, a + kStep, [](std::uint8_t c) { return kCodes[c].nan; });
}

[[gnu::always_inline]] inline float power_of_two(std::int32_t exponent) { return number(static_cast<std::uint32_t>(exponent + 127) << 23); }

/// x * 2^exponent for exponents beyond those of FP32.
[[gnu::always_inline]] inline float scaled(float x, std::int32_t exponent) {
  std::int32_t const half = exponent >> 1;
  return x * power_of_two(half) * power_of_two(exponent - half);
}

/// One row: products and accumulator are truncated to 13 fraction bits below the largest exponent among them, and added. An FP16 sum is
/// rounded, an FP32 sum truncated to 13 fraction bits of its own.
void multiply_row(std::uint8_t const* a, Columns const& columns, int n, bool f16, float* d) {
  alignas(64) std::int32_t largest[kMaxColumns];
  alignas(64) std::int32_t sum[kMaxColumns];
  for (int c = 0; c < n; ++c) {
    auto const exponent = static_cast<std::int32_t>((bits(d[c]) >> 23) & 255u);
    largest[c] = (bits(d[c]) & 0x7FFFFFFFu) == 0u ? kNoExponent : std::max(exponent, 1) - 127;
  }
  for (int k = 0; k < kStep; ++k) {
    Code const& code = kCodes[a[k]];
    if (code.magnitude == 0) continue;
    for (int c = 0; c < n; ++c) largest[c] = std::max(largest[c], code.exponent + columns.exponent[k][c]);
  }
  for (int c = 0; c < n; ++c) {
    float const aligned = scaled(d[c], kFractionBits - std::max(largest[c], -126));
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
  alignas(64) float result[kMaxColumns];
  for (int c = 0; c < n; ++c) {
    auto const exact = static_cast<float>(sum[c]);
    float const kept = f16 ? exact : number(bits(exact) & ~((1u << (23 - kFractionBits)) - 1u));
    result[c] = scaled(kept, std::max(largest[c], -126) - kFractionBits);
  }
  if (f16) {
    for (int c = 0; c < n; ++c) result[c] = from_half(to_half(result[c]));
  }
  std::uint32_t const row_nan = has_nan(a) ? ~0u : 0u;
  for (int c = 0; c < n; ++c) {
    std::uint32_t const before = bits(d[c]);
    std::uint32_t const finite = largest[c] == kNoExponent ? 0u : bits(result[c]);
    std::uint32_t const infinite = (before & 0x7FFFFFu) == 0u ? before : kNan32;
    std::uint32_t const value = (before & 0x7F800000u) == 0x7F800000u ? infinite : finite;
    std::uint32_t const nan = static_cast<std::uint32_t>(columns.nan[c]) | row_nan;
    d[c] = number((value & ~nan) | (kNan32 & nan));
  }
}

void multiply_e4m3_exact(std::uint8_t const* a, std::uint8_t const* b, int n, bool f16, float* d) {
  Columns columns;
  load_columns(columns, b, n);
  for (int i = 0; i < kWarpRows; ++i) multiply_row(a + i * kStep, columns, n, f16, d + i * n);
}

/// FP32 sums in the order of the channels.
void multiply_e4m3_fast(std::uint8_t const* a, std::uint8_t const* b, int n, bool f16, float* d) {
  alignas(64) float columns[kStep][kMaxColumns];
  for (int c = 0; c < n; ++c) {
    for (int k = 0; k < kStep; ++k) columns[k][c] = kCodes[b[c * kStep + k]].value;
  }
  for (int i = 0; i < kWarpRows; ++i) {
    float* row = d + i * n;
    for (int k = 0; k < kStep; ++k) {
      float const x = kCodes[a[i * kStep + k]].value;
      for (int c = 0; c < n; ++c) row[c] = std::fma(x, columns[k][c], row[c]);
    }
    if (f16) {
      for (int c = 0; c < n; ++c) row[c] = from_half(to_half(row[c]));
    }
  }
}

/// Toward zero, to FP32; infinite from 2^128 on.
float truncated(double x) {
  auto const r = static_cast<float>(x);
  return std::abs(static_cast<double>(r)) > std::abs(x) && std::abs(x) < 0x1p128 ? std::nextafter(r, 0.0f) : r;
}

/// As FP8, subnormal numbers have the exponent of the smallest normal one.
int half_exponent(float x) { return std::max(std::ilogb(x), -14); }

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
      if (!std::isfinite(plain)) {
        d[i * n + c] = plain != plain ? number(kNan32) : static_cast<float>(plain);
        continue;
      }
      // Exponents of products are those of their operands, which a product of significands of 2 or more passes by one.
      int largest = kNoExponent;
      for (int k = 0; k <= kHalfStep; ++k) {
        if (terms[k] == 0.0) continue;
        int const exponent = k == kHalfStep ? std::ilogb(terms[k]) : half_exponent(x[k]) + half_exponent(from_half(b[k * n + c]));
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

/// function(register, lane, element of the sums) for pairs of columns.
template <typename Function>
[[gnu::always_inline]] inline void each_pair(int n, Function const& function) {
  for (int g = 0; g < n / 8; ++g) {
    for (int r = 0; r < 2; ++r) {
      for (int row = 0; row < 8; ++row) {
        for (int t = 0; t < 4; ++t) function(2 * g + r, 4 * row + t, (row + 8 * r) * n + 8 * g + 2 * t);
      }
    }
  }
}

void load_f32(std::uint32_t const* const* registers, int n, float* sums) {
  each_pair(n, [&](int pair, int lane, int at) {
    sums[at] = number(registers[2 * pair][lane]);
    sums[at + 1] = number(registers[2 * pair + 1][lane]);
  });
}
void store_f32(float const* sums, int n, std::uint32_t* const* registers) {
  each_pair(n, [&](int pair, int lane, int at) {
    registers[2 * pair][lane] = bits(sums[at]);
    registers[2 * pair + 1][lane] = bits(sums[at + 1]);
  });
}
void load_f16(std::uint32_t const* const* registers, int n, float* sums) {
  each_pair(n, [&](int pair, int lane, int at) {
    sums[at] = from_half(registers[pair][lane] & 0xFFFFu);
    sums[at + 1] = from_half(registers[pair][lane] >> 16);
  });
}
void store_f16(float const* sums, int n, std::uint32_t* const* registers) {
  each_pair(n, [&](int pair, int lane, int at) { registers[pair][lane] = to_half(sums[at]) | (to_half(sums[at + 1]) << 16); });
}

}  // namespace

MatrixKernels matrix_kernels() {
  return {load_f16,           load_f32,           store_f16,         store_f32,  multiply_e4m3_exact,
          multiply_e4m3_fast, multiply_f16_exact, multiply_f16_fast, multiply_s8};
}

}  // namespace vcattn::emulator::VCATTN_ISA
