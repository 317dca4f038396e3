// Products on the registers of a warp (mma.sync) and the loads of their operands (ldmatrix). With g = lane / 4 and t = lane % 4 a lane
// holds rows g and g + 8 of A and of the sums, and column g of B.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "emulator/executor.hpp"
#include "emulator/fault.hpp"
#include "emulator/forms.hpp"
#include "emulator/traffic.hpp"

namespace vcattn::emulator {

namespace {

constexpr int kRows = 16, kColumns = 8;

/// A of 32 bytes per row, B of 32 bytes per column, from four and two registers: register 2 h + r of A holds row g + 8 r, bytes 16 h + 4 t.
struct Operands {
  std::uint8_t a[kRows][32];
  std::uint8_t b[kColumns][32];

  Operands(Warp& warp, std::uint32_t const* a_slots, std::uint32_t const* b_slots) {
    for (int lane = 0; lane < kLanes; ++lane) {
      int const g = lane / 4, t = lane % 4;
      for (int n = 0; n < 4; ++n) std::memcpy(&a[g + 8 * (n % 2)][16 * (n / 2) + 4 * t], &warp.slot<std::uint32_t>(a_slots[n])[lane], 4);
      for (int n = 0; n < 2; ++n) std::memcpy(&b[g][16 * n + 4 * t], &warp.slot<std::uint32_t>(b_slots[n])[lane], 4);
    }
  }
};

/// Sums that depend on operands that are not defined; INT8 products by zero do not.
void find_undefined(Warp& warp, Instruction const& in, bool zero_hides) {
  if (!warp.any_undefined()) return;
  std::uint32_t const* slots = in.operands.data();
  Operands const x(warp, slots + 4, slots + 8);
  std::uint8_t a[kRows][32] = {}, b[kColumns][32] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    int const g = lane / 4, t = lane % 4;
    for (int n = 0; n < 4; ++n) std::memset(&a[g + 8 * (n % 2)][16 * (n / 2) + 4 * t], (warp.undefined(slots[4 + n]) >> lane) & 1u, 4);
    for (int n = 0; n < 2; ++n) std::memset(&b[g][16 * n + 4 * t], (warp.undefined(slots[8 + n]) >> lane) & 1u, 4);
  }
  Mask sums[4];
  for (int n = 0; n < 4; ++n) sums[n] = warp.undefined(slots[10 + n]);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int n = 0; n < 4; ++n) {
      int const row = lane / 4 + 8 * (n / 2), column = 2 * (lane % 4) + n % 2;
      for (int k = 0; k < 32; ++k) {
        bool const a_matters = a[row][k] != 0 && (!zero_hides || b[column][k] != 0 || x.b[column][k] != 0);
        bool const b_matters = b[column][k] != 0 && (!zero_hides || a[row][k] != 0 || x.a[row][k] != 0);
        if (a_matters || b_matters) sums[n] |= Mask{1} << lane;
      }
    }
  }
  for (int n = 0; n < 4; ++n) warp.set_undefined_lanes(slots[n], sums[n]);
}

/// function(row, column, sum): the new sum. Operands: four sums, A, B, four sums before.
template <typename T, typename Function>
void each_sum(Warp& warp, Instruction const& in, Function const& function) {
  std::uint32_t const* slots = in.operands.data();
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int n = 0; n < 4; ++n) {
      T const sum = warp.slot<T>(slots[10 + n])[lane];
      warp.slot<T>(slots[n])[lane] = function(lane / 4 + 8 * (n / 2), 2 * (lane % 4) + n % 2, sum);
    }
  }
}

Step multiply_s8(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "mma.sync");
  find_undefined(warp, in, true);
  Operands const x(warp, in.operands.data() + 4, in.operands.data() + 8);
  each_sum<std::uint32_t>(warp, in, [&](int row, int column, std::uint32_t sum) {
    std::int32_t products = 0;
    for (int k = 0; k < 32; ++k) products += static_cast<std::int8_t>(x.a[row][k]) * static_cast<std::int8_t>(x.b[column][k]);
    return sum + static_cast<std::uint32_t>(products);
  });
  return Step::next;
}

/// A number as significand * 2^(exponent - bits of a fraction).
struct Parts {
  std::int32_t significand = 0, exponent = kZero;
  static constexpr std::int32_t kZero = -10000;
};
Parts parts_of_bf16(std::uint32_t x) {
  std::uint32_t const field = (x >> 7) & 0xFFu;
  auto const magnitude = static_cast<std::int32_t>((x & 0x7Fu) | (field != 0 ? 0x80u : 0u));
  if (magnitude == 0) return {};
  return {(x & 0x8000u) != 0 ? -magnitude : magnitude, static_cast<std::int32_t>(std::max(field, 1u)) - 127};
}

/// Toward zero; infinite from 2^128 on.
float truncated(double x) {
  auto const r = static_cast<float>(x);
  return std::abs(static_cast<double>(r)) > std::abs(x) && std::abs(x) < 0x1p128 ? std::nextafter(r, 0.0f) : r;
}

/// Terms are truncated to so many bits below the largest exponent among them, added exactly, and the sum truncated to FP32.
constexpr int kFractionBits = 25;
constexpr int kProducts = 16;

float sum_of_products(Parts const* a, Parts const* b, float before) {
  std::uint32_t const bits = std::bit_cast<std::uint32_t>(before);
  auto const field = static_cast<std::int32_t>((bits >> 23) & 0xFFu);
  auto const magnitude = static_cast<std::int64_t>((bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u));
  std::int32_t const exponent = std::max(field, 1) - 127;
  std::int32_t largest = magnitude == 0 ? Parts::kZero : exponent;
  for (int k = 0; k < kProducts; ++k) {
    if (a[k].significand != 0 && b[k].significand != 0) largest = std::max(largest, a[k].exponent + b[k].exponent);
  }
  if (largest == Parts::kZero) return 0.0f;
  // Fractions: 23 bits of the sum before, 14 of a product.
  auto const aligned = [&](std::int64_t significand, int fraction_bits, std::int32_t at) {
    std::int64_t const wide = std::abs(significand) << (kFractionBits - fraction_bits);
    std::int64_t const kept = wide >> std::min(largest - at, 63);
    return significand < 0 ? -kept : kept;
  };
  std::int64_t sum = magnitude == 0 ? 0 : aligned((bits >> 31) != 0 ? -magnitude : magnitude, 23, exponent);
  for (int k = 0; k < kProducts; ++k) {
    std::int32_t const product = a[k].significand * b[k].significand;
    if (product != 0) sum += aligned(product, 14, a[k].exponent + b[k].exponent);
  }
  return truncated(std::ldexp(static_cast<double>(sum), largest - kFractionBits));
}

Step multiply_bf16(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "mma.sync");
  find_undefined(warp, in, false);
  Operands const x(warp, in.operands.data() + 4, in.operands.data() + 8);
  auto const element = [](std::uint8_t const* row, int k) { return static_cast<std::uint32_t>(row[2 * k] | (row[2 * k + 1] << 8)); };
  auto const number = [](std::uint32_t bf16) { return std::bit_cast<float>(bf16 << 16); };
  bool const exact = warp.cta().grid.arithmetic == MatrixArithmetic::exact;
  Parts a[kRows][kProducts], b[kColumns][kProducts];
  for (int k = 0; k < kProducts; ++k) {
    for (int row = 0; row < kRows; ++row) {
      a[row][k] = parts_of_bf16(element(x.a[row], k));
    }
    for (int column = 0; column < kColumns; ++column) {
      b[column][k] = parts_of_bf16(element(x.b[column], k));
    }
  }
  each_sum<float>(warp, in, [&](int row, int column, float sum) {
    // Infinite or NaN only where a term is: products beyond FP32 are finite.
    double plain = static_cast<double>(sum);
    for (int k = 0; k < kProducts; ++k)
      plain += static_cast<double>(number(element(x.a[row], k))) * static_cast<double>(number(element(x.b[column], k)));
    if (exact && std::isfinite(plain)) return sum_of_products(a[row], b[column], sum);
    return plain == plain ? static_cast<float>(plain) : std::bit_cast<float>(0x7FFFFFFFu);
  });
  return Step::next;
}

/// Four 8 x 8 matrices of 16 bits: lane i gives the address of row i % 8 of matrix i / 8. Row g, columns 2 t and 2 t + 1 of each;
/// transposed: column g, rows 2 t and 2 t + 1.
template <bool kTransposed>
Step load_matrices(Warp& warp, Instruction const& in, Mask mask) {
  warp.require_all_lanes(mask, "ldmatrix");
  Cta& cta = warp.cta();
  std::uint16_t rows[kLanes][8];
  std::uint64_t undefined[kLanes];  // addresses of rows that were never written; 0: they were
  for (int lane = 0; lane < kLanes; ++lane) {
    std::uint64_t const from = warp.slot<std::uint32_t>(in.op[4])[lane] + static_cast<std::uint64_t>(in.offset[0]);
    undefined[lane] = cta.shared.has_undefined(from, sizeof rows[lane]) ? from : 0;
    std::memcpy(rows[lane], cta.shared.read(from, sizeof rows[lane], sizeof rows[lane], warp.clock), sizeof rows[lane]);
  }
  if (cta.grid.count_forms) {
    // Each matrix is read at once.
    std::uint64_t addresses[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      addresses[lane] = warp.slot<std::uint32_t>(in.op[4])[lane] + static_cast<std::uint64_t>(in.offset[0]);
    count_access(cta.grid.counters, Level::shared, addresses, kAllLanes, sizeof rows[0], false);
  }
  for (int matrix = 0; matrix < 4; ++matrix) {
    auto* d = warp.slot<std::uint32_t>(in.op[matrix]);
    auto const* first = rows + 8 * matrix;
    for (int lane = 0; lane < kLanes; ++lane) {
      int const g = lane / 4, t = 2 * (lane % 4);
      std::uint32_t const low = kTransposed ? first[t][g] : first[g][t];
      std::uint32_t const high = kTransposed ? first[t + 1][g] : first[g][t + 1];
      d[lane] = low | (high << 16);
    }
  }
  for (int row = 0; row < kLanes; ++row) {
    if (undefined[row] == 0) continue;
    for (int lane = 0; lane < kLanes; ++lane) {
      bool const gets = kTransposed ? lane % 4 == row % 8 / 2 : lane / 4 == row % 8;
      if (gets) warp.set_undefined(in.op[row / 8], lane, undefined[row]);
    }
  }
  return Step::next;
}

}  // namespace

std::vector<Form> mma_forms() {
  return {
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "{rrrr}={rrrr}{rr}{rrrr}", nullptr, multiply_bf16},
      {"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "{rrrr}={rrrr}{rr}{rrrr}", nullptr, multiply_s8},
      {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", "{rrrr}=s", nullptr, load_matrices<false>},
      {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "{rrrr}=s", nullptr, load_matrices<true>},
  };
}

}  // namespace vcattn::emulator
