// Instructions that work on the registers of one lane. Compiled once per instruction set (VCATTN_ISA), so that the loops over 32 lanes
// become vector code. Slots are read as 32-bit or 64-bit lanes, so this file is compiled without strict aliasing.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "emulator/ir.hpp"
#include "emulator/lane_ops.hpp"

namespace vcattn::emulator::VCATTN_ISA {

namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;
using S32 = std::int32_t;
using S64 = std::int64_t;
using F32 = float;
using F64 = double;

// clang-format off
#define VCATTN_EACH_LANE _Pragma("GCC ivdep") for (int i = 0; i < kLanes; ++i)
// clang-format on

template <typename T>
T* slot(Lanes const& lanes, U32 number) {
  return reinterpret_cast<T*>(lanes.slots + number * static_cast<U32>(kLanes));
}

/// Writes the lanes of `mask`.
template <typename T>
void store(T* d, T const* values, Mask mask) {
  VCATTN_EACH_LANE d[i] = ((mask >> i) & 1u) != 0 ? values[i] : d[i];
}

template <typename D, typename A, auto kFunction>
void unary(Lanes const& lanes, Instruction const& in, Mask mask) {
  D* d = slot<D>(lanes, in.op[0]);
  A const* a = slot<A>(lanes, in.op[1]);
  if (mask == kAllLanes) {
    VCATTN_EACH_LANE d[i] = kFunction(a[i]);
  } else {
    D t[kLanes];
    VCATTN_EACH_LANE t[i] = kFunction(a[i]);
    store(d, t, mask);
  }
}

template <typename D, typename A, typename B, auto kFunction>
void binary(Lanes const& lanes, Instruction const& in, Mask mask) {
  D* d = slot<D>(lanes, in.op[0]);
  A const* a = slot<A>(lanes, in.op[1]);
  B const* b = slot<B>(lanes, in.op[2]);
  if (mask == kAllLanes) {
    VCATTN_EACH_LANE d[i] = kFunction(a[i], b[i]);
  } else {
    D t[kLanes];
    VCATTN_EACH_LANE t[i] = kFunction(a[i], b[i]);
    store(d, t, mask);
  }
}

template <typename D, typename A, typename B, typename C, auto kFunction>
void ternary(Lanes const& lanes, Instruction const& in, Mask mask) {
  D* d = slot<D>(lanes, in.op[0]);
  A const* a = slot<A>(lanes, in.op[1]);
  B const* b = slot<B>(lanes, in.op[2]);
  C const* c = slot<C>(lanes, in.op[3]);
  if (mask == kAllLanes) {
    VCATTN_EACH_LANE d[i] = kFunction(a[i], b[i], c[i]);
  } else {
    D t[kLanes];
    VCATTN_EACH_LANE t[i] = kFunction(a[i], b[i], c[i]);
    store(d, t, mask);
  }
}

template <typename T, auto kFunction>
void compare(Lanes const& lanes, Instruction const& in, Mask mask) {
  T const* a = slot<T>(lanes, in.op[1]);
  T const* b = slot<T>(lanes, in.op[2]);
  Mask result = 0;
  for (int i = 0; i < kLanes; ++i) result |= kFunction(a[i], b[i]) ? Mask{1} << i : Mask{0};
  Mask& p = lanes.predicates[in.op[0]];
  p = (p & ~mask) | (result & mask);
}

template <auto kFunction>
void logic(Lanes const& lanes, Instruction const& in, Mask mask) {
  Mask& p = lanes.predicates[in.op[0]];
  p = (p & ~mask) | (kFunction(lanes.predicates[in.op[1]], lanes.predicates[in.op[2]]) & mask);
}
void logic_not(Lanes const& lanes, Instruction const& in, Mask mask) {
  Mask& p = lanes.predicates[in.op[0]];
  p = (p & ~mask) | (~lanes.predicates[in.op[1]] & mask);
}

template <typename T>
void select(Lanes const& lanes, Instruction const& in, Mask mask) {
  T const* a = slot<T>(lanes, in.op[1]);
  T const* b = slot<T>(lanes, in.op[2]);
  Mask const p = lanes.predicates[in.op[3]];
  T t[kLanes];
  VCATTN_EACH_LANE t[i] = ((p >> i) & 1u) != 0 ? a[i] : b[i];
  store(slot<T>(lanes, in.op[0]), t, mask);
}

// Numbers ------------------------------------------------------------------------------------------------------------------------------

#include "emulator/numbers.inl"

[[gnu::always_inline]] inline F32 quiet(F32 x) { return x == x ? x : std::bit_cast<F32>(kNan32); }

[[gnu::always_inline]] inline F32 add(F32 a, F32 b) { return quiet(a + b); }
[[gnu::always_inline]] inline F32 subtract(F32 a, F32 b) { return quiet(a - b); }
[[gnu::always_inline]] inline F32 multiply(F32 a, F32 b) { return quiet(a * b); }
[[gnu::always_inline]] inline F32 fused(F32 a, F32 b, F32 c) { return quiet(std::fma(a, b, c)); }
[[gnu::always_inline]] inline F32 divide(F32 a, F32 b) { return quiet(a / b); }
/// Of a NaN and a number: the number. -0 < +0.
[[gnu::always_inline]] inline F32 minimum(F32 a, F32 b) {
  return a != a ? quiet(b) : b != b ? a : a < b ? a : b < a ? b : number(bits(a) | bits(b));
}
[[gnu::always_inline]] inline F32 maximum(F32 a, F32 b) {
  return a != a ? quiet(b) : b != b ? a : a > b ? a : b > a ? b : number(bits(a) & bits(b));
}

/// The product or difference is exact in FP64 but for differences of far exponents, where FP64 rounding cannot cross an FP32 number.
F32 round_up(double x) {
  auto const r = static_cast<F32>(x);
  return static_cast<double>(r) < x ? std::nextafter(r, std::numeric_limits<F32>::infinity()) : r;
}
F32 multiply_up(F32 a, F32 b) { return quiet(round_up(static_cast<double>(a) * static_cast<double>(b))); }
/// Downward: an overflow of finite numbers is the largest number, a difference of equal numbers is -0.
F32 subtract_down(F32 a, F32 b) {
  constexpr F32 kInfinity = std::numeric_limits<F32>::infinity();
  F32 const s = a - b;
  F32 const bb = s - a;
  F32 const error = (a - (s - bb)) - (b + bb);
  if (s == kInfinity && a < kInfinity && b > -kInfinity) return std::numeric_limits<F32>::max();
  if (s == 0.0f) return bits(a) == 0u && bits(b) == 0x80000000u ? 0.0f : -0.0f;
  return quiet(error < 0 ? std::nextafter(s, -kInfinity) : s);
}
/// Quarters of a unit of the significand, 2^15ths of it per step of x, and the same per step of the square.
struct Segment {
  S32 constant, linear, square;
};
constexpr Segment kExp2Segments[] = {
#include "emulator/exp2_segments.inl"
};
static_assert(std::size(kExp2Segments) == 64);

/// The square of 17 bits from its columns of 2^19 on: what the squarer leaves out below does not carry.
inline S32 short_square(U32 x) {
  U32 sum = 0;
  for (int i = 10; i < 17; ++i) {
    U32 const below = x & ((1u << i) - 1u);
    sum += ((x >> i) & 1u) * ((below >> (18 - i)) + (1u << (2 * i - 19)));
  }
  return static_cast<S32>(sum);
}
/// To the bit, as measured over all fractions: 23 bits of the fraction of |x| count, a negative x takes their ones' complement unless they
/// are 0; then a quadratic polynomial in the lower 17 bits. Subnormal results are 0.
F32 exp2_flushed(F32 x) {
  constexpr U32 kFractionMask = 0x7FFFFFu;
  constexpr S64 kRounding = 6114;
  if (!(x < 128.0f)) return x == x ? std::numeric_limits<F32>::infinity() : quiet(x);
  if (x < -126.0f) return 0.0f;
  auto const magnitude = static_cast<U32>(std::abs(x) * 0x1p23f);
  U32 fraction = magnitude & kFractionMask;
  auto exponent = static_cast<S32>(magnitude >> 23);
  if (x < 0.0f) {
    exponent = fraction == 0 ? -exponent : -exponent - 1;
    fraction = fraction == 0 ? 0 : kFractionMask - fraction;
  }
  Segment const& segment = kExp2Segments[fraction >> 17];
  U32 const at = fraction & 0x1FFFFu;
  S64 const significand = S64{segment.constant} * 8192 + kRounding + S64{segment.linear} * at + S64{segment.square} * short_square(at);
  return number((static_cast<U32>(exponent + 127) << 23) + static_cast<U32>(significand >> 15));
}
[[gnu::always_inline]] inline S32 truncate_to_int(F32 x) {
  if (!(x == x)) return 0;
  if (x >= 2147483648.0f) return std::numeric_limits<S32>::max();
  if (x <= -2147483648.0f) return std::numeric_limits<S32>::min();
  return static_cast<S32>(x);
}

/// a b + c with one rounding: the product is exact in FP32, the sum is rounded to odd, which a second rounding to 11 bits does not feel.
[[gnu::always_inline]] inline U32 fused_half(U32 a, U32 b, U32 c) {
  F32 const p = from_half(a) * from_half(b);
  F32 const q = from_half(c);
  F32 const s = p + q;
  F32 const part = s - p;
  F32 const error = (p - (s - part)) + (q - part);
  bool const finite = std::abs(s) < std::numeric_limits<F32>::infinity();
  bool const beyond = (bits(error) >> 31) != (bits(s) >> 31);
  U32 const odd = (bits(s) - (beyond ? 1u : 0u)) | 1u;
  return to_half(finite && error != 0.0f ? number(odd) : s);
}
[[gnu::always_inline]] inline U32 relu_half(U32 h) { return (h & 0x7FFFu) > 0x7C00u ? kNan16 : (h & 0x8000u) != 0 ? 0u : h; }
[[gnu::always_inline]] inline U32 max_half(U32 a, U32 b) {
  auto const is_nan = [](U32 h) { return (h & 0x7FFFu) > 0x7C00u; };
  auto const order = [](U32 h) { return static_cast<S32>((h & 0x8000u) != 0 ? 0xFFFFu - h : h + 0x8000u); };
  U32 const larger = order(a) >= order(b) ? a : b;
  return is_nan(a) ? (is_nan(b) ? kNan16 : b) : is_nan(b) ? a : larger;
}
template <auto kFunction, typename... Halves>
[[gnu::always_inline]] inline U32 both_halves(Halves... x) {
  return kFunction((x & 0xFFFFu)...) | (kFunction((x >> 16)...) << 16);
}
[[gnu::always_inline]] inline U32 to_bf16(F32 x) {
  U32 const b = bits(x);
  return (b & 0x7FFFFFFFu) > 0x7F800000u ? kNan16 : (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16;
}
/// a b + c with one rounding to BF16: exact in FP64 but for sums of far exponents, then rounded to odd twice.
inline U32 fused_bfloat(U32 a, U32 b, U32 c) {
  auto const from = [](U32 x) { return static_cast<double>(number(x << 16)); };
  double const p = from(a) * from(b);
  double const q = from(c);
  double s = p + q;
  double const part = s - p;
  double const error = (p - (s - part)) + (q - part);
  if (std::isfinite(s) && error != 0.0 && (std::bit_cast<U64>(s) & 1u) == 0) {
    s = std::bit_cast<double>(std::bit_cast<U64>(s) + ((error < 0.0) != (s < 0.0) ? ~U64{0} : U64{1}));
  }
  auto r = static_cast<F32>(s);
  if (static_cast<double>(r) != s && s == s) {
    if (std::abs(static_cast<double>(r)) > std::abs(s)) r = number(bits(r) - 1);
    r = number(bits(r) | 1u);
  }
  return to_bf16(r);
}
inline U32 subtract_bfloat(U32 a, U32 b) { return fused_bfloat(a, 0x3F80u, b ^ 0x8000u); }
/// 1 where equal.
inline U32 equal_bfloat(U32 a, U32 b) { return number(a << 16) == number(b << 16) ? 0x3F80u : 0u; }

[[gnu::always_inline]] inline U32 e4m3_to_half(U32 code) {
  U32 const magnitude = code & 0x7Fu;
  U32 const finite = magnitude >= 8u ? (magnitude << 7) + (8u << 10) : to_half(static_cast<F32>(static_cast<S32>(magnitude)) * 0x1p-9f);
  return magnitude == 0x7Fu ? kNan16 : finite | ((code & 0x80u) << 8);
}

/// Nearest even, saturating.
[[gnu::always_inline]] inline U32 to_e4m3(F32 x) {
  U32 const magnitude = bits(x) & 0x7FFFFFFFu;
  U32 const clamped = magnitude < 0x43E00000u ? magnitude : 0x43E00000u;  // 448
  U32 const normal = (clamped + 0x7FFFFu + ((clamped >> 20) & 1u) - (120u << 23)) >> 20;
  U32 const subnormal = bits(number(clamped) + 16384.0f) - bits(16384.0f);
  U32 const finite = clamped < 0x3C800000u ? subnormal : normal;
  return magnitude > 0x7F800000u ? 0x7Fu : finite | ((bits(x) >> 24) & 0x80u);
}
template <auto kFunction, int kBits>
[[gnu::always_inline]] inline U32 pack(F32 high, F32 low) {
  return kFunction(low) | (kFunction(high) << kBits);
}

// Integers -----------------------------------------------------------------------------------------------------------------------------

[[gnu::always_inline]] inline U32 permute(U32 a, U32 b, U32 selector) {
  U64 const bytes = (U64{b} << 32) | a;
  U32 result = 0;
  for (int n = 0; n < 4; ++n) {
    U32 const nibble = (selector >> (4 * n)) & 0xFu;
    U32 byte = static_cast<U32>(bytes >> (8 * (nibble & 7u))) & 0xFFu;
    if ((nibble & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xFFu : 0u;
    result |= byte << (8 * n);
  }
  return result;
}
[[gnu::always_inline]] inline U32 reverse(U32 x) {
  U32 result = 0;
  for (int i = 0; i < 32; ++i) result |= ((x >> i) & 1u) << (31 - i);
  return result;
}
[[gnu::always_inline]] inline U32 leading_zeros(U32 x) { return x == 0 ? ~0u : static_cast<U32>(std::countl_zero(x)); }
S32 divide_signed(S32 a, S32 b) { return b == 0 ? -1 : b == -1 ? static_cast<S32>(0u - static_cast<U32>(a)) : a / b; }
U32 divide_unsigned(U32 a, U32 b) { return b == 0 ? ~0u : a / b; }
U32 remainder_unsigned(U32 a, U32 b) { return b == 0 ? ~0u : a % b; }
S32 remainder_signed(S32 a, S32 b) { return b == 0 ? -1 : b == -1 ? 0 : a % b; }

void insert_bits(Lanes const& lanes, Instruction const& in, Mask mask) {
  U32 const *a = slot<U32>(lanes, in.op[1]), *b = slot<U32>(lanes, in.op[2]), *begin = slot<U32>(lanes, in.op[3]),
            *length = slot<U32>(lanes, in.op[4]);
  U32 t[kLanes];
  VCATTN_EACH_LANE {
    U32 const shift = begin[i] & 31u;
    U32 const field = (length[i] >= 32 ? ~0u : (1u << (length[i] & 31u)) - 1u) << shift;
    t[i] = (b[i] & ~field) | ((a[i] << shift) & field);
  }
  store(slot<U32>(lanes, in.op[0]), t, mask);
}

void insert_bits_wide(Lanes const& lanes, Instruction const& in, Mask mask) {
  U64 const *a = slot<U64>(lanes, in.op[1]), *b = slot<U64>(lanes, in.op[2]);
  U32 const *begin = slot<U32>(lanes, in.op[3]), *length = slot<U32>(lanes, in.op[4]);
  U64 t[kLanes];
  VCATTN_EACH_LANE {
    U32 const shift = begin[i] & 63u;
    U64 const field = (length[i] >= 64 ? ~U64{0} : (U64{1} << (length[i] & 63u)) - 1u) << shift;
    t[i] = (b[i] & ~field) | ((a[i] << shift) & field);
  }
  store(slot<U64>(lanes, in.op[0]), t, mask);
}

S64 divide_signed_wide(S64 a, S64 b) { return b == 0 ? -1 : b == -1 ? static_cast<S64>(0u - static_cast<U64>(a)) : a / b; }
U32 dot_bytes(U32 a, U32 b, U32 c) {
  for (int n = 0; n < 32; n += 8) c += static_cast<U32>(static_cast<std::int8_t>(a >> n) * static_cast<std::int8_t>(b >> n));
  return c;
}
[[gnu::always_inline]] inline U32 truncate_to_unsigned(F32 x) {
  if (!(x > 0.0f)) return 0;
  return x >= 4294967296.0f ? ~0u : static_cast<U32>(x);
}
[[gnu::always_inline]] inline U32 half_word(U32 a) { return a & 0xFFFFu; }

// Moves --------------------------------------------------------------------------------------------------------------------------------

/// {low, high} of 16 bits each from a register.
void split_halves(Lanes const& lanes, Instruction const& in, Mask mask) {
  U32 const* a = slot<U32>(lanes, in.op[2]);
  U32 low[kLanes], high[kLanes];
  VCATTN_EACH_LANE low[i] = a[i] & 0xFFFFu;
  VCATTN_EACH_LANE high[i] = a[i] >> 16;
  store(slot<U32>(lanes, in.op[0]), low, mask);
  store(slot<U32>(lanes, in.op[1]), high, mask);
}
void split_words(Lanes const& lanes, Instruction const& in, Mask mask) {
  U64 const* a = slot<U64>(lanes, in.op[2]);
  U32 low[kLanes], high[kLanes];
  VCATTN_EACH_LANE low[i] = static_cast<U32>(a[i]);
  VCATTN_EACH_LANE high[i] = static_cast<U32>(a[i] >> 32);
  store(slot<U32>(lanes, in.op[0]), low, mask);
  store(slot<U32>(lanes, in.op[1]), high, mask);
}

void copy_predicate(Lanes const& lanes, Instruction const& in, Mask mask) {
  Mask& p = lanes.predicates[in.op[0]];
  p = (p & ~mask) | (lanes.predicates[in.op[1]] & mask);
}
void exclusive_or_number(Lanes const& lanes, Instruction const& in, Mask mask) {
  Mask& p = lanes.predicates[in.op[0]];
  Mask const result = lanes.predicates[in.op[1]] ^ (*slot<U32>(lanes, in.op[2]) != 0 ? kAllLanes : 0);
  p = (p & ~mask) | (result & mask);
}
void set_predicate(Lanes const& lanes, Instruction const& in, Mask mask) {
  Mask& p = lanes.predicates[in.op[0]];
  p = (p & ~mask) | (*slot<U32>(lanes, in.op[1]) != 0 ? mask : 0);
}

// Named, because GCC 12 takes a `>` in a lambda that is a template argument for its end.
[[gnu::always_inline]] inline U32 shift_left(U32 a, U32 b) { return b > 31 ? 0u : a << (b & 31u); }
[[gnu::always_inline]] inline U64 shift_left_wide(U64 a, U32 b) { return b > 63 ? 0u : a << (b & 63u); }
[[gnu::always_inline]] inline U32 shift_right(U32 a, U32 b) { return b > 31 ? 0u : a >> (b & 31u); }
[[gnu::always_inline]] inline U64 shift_right_wide(U64 a, U32 b) { return b > 63 ? 0u : a >> (b & 63u); }
[[gnu::always_inline]] inline S32 shift_right_signed(S32 a, U32 b) { return a >> (b > 31 ? 31 : b); }
[[gnu::always_inline]] inline S64 shift_right_signed_wide(S64 a, U32 b) { return a >> (b > 63 ? 63 : b); }
[[gnu::always_inline]] inline S32 multiply_high(S32 a, S32 b) { return static_cast<S32>((S64{a} * b) >> 32); }
[[gnu::always_inline]] inline U32 multiply_high_unsigned(U32 a, U32 b) { return static_cast<U32>((U64{a} * b) >> 32); }
[[gnu::always_inline]] inline S64 multiply_high_wide(S64 a, S64 b) { return static_cast<S64>((static_cast<__int128>(a) * b) >> 64); }
template <typename T>
[[gnu::always_inline]] inline bool greater(T a, T b) {
  return a > b;
}
template <typename T>
[[gnu::always_inline]] inline bool greater_equal(T a, T b) {
  return a >= b;
}
template <typename T>
[[gnu::always_inline]] inline T larger(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
[[gnu::always_inline]] inline T smaller(T a, T b) {
  return a < b ? a : b;
}

/// FP64 keeps the payload of a NaN, made quiet; of two NaN the second one.
inline F64 quiet_nan(F64 a) { return std::bit_cast<F64>(std::bit_cast<U64>(a) | (U64{1} << 51)); }
inline F64 add_wide(F64 a, F64 b) { return b != b ? quiet_nan(b) : a + b; }
inline F64 multiply_wide(F64 a, F64 b) { return b != b ? quiet_nan(b) : a * b; }
/// Of a NaN and a number: the number. -0 < +0.
inline F64 larger_number(F64 a, F64 b) {
  if (a != a) return b != b ? quiet_nan(b) : b;
  if (b != b) return a;
  return a == b ? std::bit_cast<F64>(std::bit_cast<U64>(a) & std::bit_cast<U64>(b)) : larger(a, b);
}

constexpr auto kCopy32 = unary<U32, U32, [](U32 a) { return a; }>;
constexpr auto kCopy64 = unary<U64, U64, [](U64 a) { return a; }>;
constexpr auto kAdd32 = binary<U32, U32, U32, [](U32 a, U32 b) { return a + b; }>;
constexpr auto kAdd64 = binary<U64, U64, U64, [](U64 a, U64 b) { return a + b; }>;
constexpr auto kSubtract32 = binary<U32, U32, U32, [](U32 a, U32 b) { return a - b; }>;
constexpr auto kSubtract64 = binary<U64, U64, U64, [](U64 a, U64 b) { return a - b; }>;
constexpr auto kMultiply32 = binary<U32, U32, U32, [](U32 a, U32 b) { return a * b; }>;
constexpr auto kMultiply64 = binary<U64, U64, U64, [](U64 a, U64 b) { return a * b; }>;
constexpr auto kMultiplyAdd32 = ternary<U32, U32, U32, U32, [](U32 a, U32 b, U32 c) { return a * b + c; }>;
constexpr auto kMultiplyAdd64 = ternary<U64, U64, U64, U64, [](U64 a, U64 b, U64 c) { return a * b + c; }>;
constexpr auto kShiftLeft32 = binary<U32, U32, U32, shift_left>;
constexpr auto kShiftLeft64 = binary<U64, U64, U32, shift_left_wide>;
constexpr auto kShiftRight32 = binary<U32, U32, U32, shift_right>;
constexpr auto kShiftRight64 = binary<U64, U64, U32, shift_right_wide>;

constexpr Form kForms[] = {
    {"mov.b32", "r=r", kCopy32},
    {"mov.u32", "r=r", kCopy32},
    {"mov.s32", "r=r", kCopy32},
    {"mov.f32", "r=r", kCopy32},
    {"mov.b16", "h=h", kCopy32},
    {"mov.u16", "h=h", kCopy32},
    {"mov.b64", "d=d", kCopy64},
    {"mov.f64", "d=d", kCopy64},
    {"mov.pred", "p=p", copy_predicate},
    {"mov.pred", "p=r", set_predicate},
    {"mov.u64", "d=d", kCopy64},
    {"mov.b32", "{hh}=r", split_halves},
    {"mov.b32", "r={hh}", binary<U32, U32, U32, [](U32 a, U32 b) { return a | (b << 16); }>},
    {"mov.b64", "{rr}=d", split_words},
    {"mov.b64", "d={rr}", binary<U64, U32, U32, [](U32 a, U32 b) { return U64{a} | (U64{b} << 32); }>},
    {"cvta.to.global.u64", "d=d", kCopy64},
    {"cvta.param.u64", "d=d", kCopy64},
    {"cvta.global.u64", "d=d", kCopy64},

    {"add.s32", "r=rr", kAdd32},
    {"add.u32", "r=rr", kAdd32},
    {"add.s64", "d=dd", kAdd64},
    {"add.u64", "d=dd", kAdd64},
    {"sub.s32", "r=rr", kSubtract32},
    {"sub.u32", "r=rr", kSubtract32},
    {"sub.s64", "d=dd", kSubtract64},
    {"mul.lo.s32", "r=rr", kMultiply32},
    {"mul.lo.u32", "r=rr", kMultiply32},
    {"mul.lo.s64", "d=dd", kMultiply64},
    {"mul.lo.u64", "d=dd", kMultiply64},
    {"mul.hi.s32", "r=rr", binary<S32, S32, S32, multiply_high>},
    {"mul.hi.u32", "r=rr", binary<U32, U32, U32, multiply_high_unsigned>},
    {"mul.hi.s64", "d=dd", binary<S64, S64, S64, multiply_high_wide>},
    {"mul.wide.s32", "d=rr", binary<S64, S32, S32, [](S32 a, S32 b) { return S64{a} * b; }>},
    {"mul.wide.u32", "d=rr", binary<U64, U32, U32, [](U32 a, U32 b) { return U64{a} * b; }>},
    {"mad.lo.s32", "r=rrr", kMultiplyAdd32},
    {"mad.lo.u32", "r=rrr", kMultiplyAdd32},
    {"mad.lo.s64", "d=ddd", kMultiplyAdd64},
    {"mad.wide.s32", "d=rrd", ternary<S64, S32, S32, S64, [](S32 a, S32 b, S64 c) { return S64{a} * b + c; }>},
    {"mad.wide.u32", "d=rrd", ternary<U64, U32, U32, U64, [](U32 a, U32 b, U64 c) { return U64{a} * b + c; }>},
    {"div.s32", "r=rr", binary<S32, S32, S32, divide_signed>},
    {"div.u32", "r=rr", binary<U32, U32, U32, divide_unsigned>},
    {"rem.s32", "r=rr", binary<S32, S32, S32, remainder_signed>},
    {"rem.u32", "r=rr", binary<U32, U32, U32, remainder_unsigned>},
    {"min.s32", "r=rr", binary<S32, S32, S32, smaller<S32>>},
    {"min.u32", "r=rr", binary<U32, U32, U32, smaller<U32>>},
    {"max.s32", "r=rr", binary<S32, S32, S32, larger<S32>>},
    {"max.u32", "r=rr", binary<U32, U32, U32, larger<U32>>},
    {"min.s64", "d=dd", binary<S64, S64, S64, smaller<S64>>},
    {"max.s64", "d=dd", binary<S64, S64, S64, larger<S64>>},
    {"neg.s32", "r=r", unary<U32, U32, [](U32 a) { return 0u - a; }>},
    {"abs.s32", "r=r", unary<S32, S32, [](S32 a) { return a < 0 ? static_cast<S32>(0u - static_cast<U32>(a)) : a; }>},

    {"and.b32", "r=rr", binary<U32, U32, U32, [](U32 a, U32 b) { return a & b; }>},
    {"or.b32", "r=rr", binary<U32, U32, U32, [](U32 a, U32 b) { return a | b; }>},
    {"xor.b32", "r=rr", binary<U32, U32, U32, [](U32 a, U32 b) { return a ^ b; }>},
    {"not.b32", "r=r", unary<U32, U32, [](U32 a) { return ~a; }>},
    {"and.b64", "d=dd", binary<U64, U64, U64, [](U64 a, U64 b) { return a & b; }>},
    {"or.b64", "d=dd", binary<U64, U64, U64, [](U64 a, U64 b) { return a | b; }>},
    {"xor.b64", "d=dd", binary<U64, U64, U64, [](U64 a, U64 b) { return a ^ b; }>},
    {"shl.b32", "r=rr", kShiftLeft32},
    {"shl.b64", "d=dr", kShiftLeft64},
    {"shr.u32", "r=rr", kShiftRight32},
    {"shr.b32", "r=rr", kShiftRight32},
    {"shr.u64", "d=dr", kShiftRight64},
    {"shr.s32", "r=rr", binary<S32, S32, U32, shift_right_signed>},
    {"shr.s64", "d=dr", binary<S64, S64, U32, shift_right_signed_wide>},
    {"prmt.b32", "r=rrr", ternary<U32, U32, U32, U32, permute>},
    {"brev.b32", "r=r", unary<U32, U32, reverse>},
    {"bfind.shiftamt.u32", "r=r", unary<U32, U32, leading_zeros>},
    {"clz.b32", "r=r", unary<U32, U32, [](U32 a) { return static_cast<U32>(std::countl_zero(a)); }>},
    {"popc.b32", "r=r", unary<U32, U32, [](U32 a) { return static_cast<U32>(std::popcount(a)); }>},
    {"bfi.b32", "r=rrrr", insert_bits},
    {"bfi.b64", "d=ddrr", insert_bits_wide},
    {"add.s16", "h=hh", binary<U32, U32, U32, [](U32 a, U32 b) { return half_word(a + b); }>},
    {"and.b16", "h=hh", binary<U32, U32, U32, [](U32 a, U32 b) { return half_word(a & b); }>},
    {"mul.wide.u16", "r=hh", binary<U32, U32, U32, [](U32 a, U32 b) { return half_word(a) * half_word(b); }>},
    {"div.s64", "d=dd", binary<S64, S64, S64, divide_signed_wide>},
    {"neg.s64", "d=d", unary<U64, U64, [](U64 a) { return U64{0} - a; }>},
    {"not.b64", "d=d", unary<U64, U64, [](U64 a) { return ~a; }>},
    {"dp4a.s32.s32", "r=rrr", ternary<U32, U32, U32, U32, dot_bytes>},

    {"and.pred", "p=pp", logic<[](Mask a, Mask b) { return a & b; }>},
    {"or.pred", "p=pp", logic<[](Mask a, Mask b) { return a | b; }>},
    {"xor.pred", "p=pp", logic<[](Mask a, Mask b) { return a ^ b; }>},
    {"xor.pred", "p=pr", exclusive_or_number},
    {"not.pred", "p=p", logic_not},
    {"selp.b32", "r=rrp", select<U32>},
    {"selp.u32", "r=rrp", select<U32>},
    {"selp.s32", "r=rrp", select<U32>},
    {"selp.f32", "r=rrp", select<U32>},
    {"selp.b16", "h=hhp", select<U32>},
    {"selp.u16", "h=hhp", select<U32>},
    {"selp.f64", "d=ddp", select<U64>},
    {"selp.b64", "d=ddp", select<U64>},
    {"selp.u64", "d=ddp", select<U64>},

    {"setp.eq.b32", "p=rr", compare<U32, [](U32 a, U32 b) { return a == b; }>},
    {"setp.ne.b32", "p=rr", compare<U32, [](U32 a, U32 b) { return a != b; }>},
    {"setp.eq.s32", "p=rr", compare<U32, [](U32 a, U32 b) { return a == b; }>},
    {"setp.ne.s32", "p=rr", compare<U32, [](U32 a, U32 b) { return a != b; }>},
    {"setp.ne.u32", "p=rr", compare<U32, [](U32 a, U32 b) { return a != b; }>},
    {"setp.eq.s16", "p=hh", compare<U32, [](U32 a, U32 b) { return half_word(a) == half_word(b); }>},
    {"setp.ne.s16", "p=hh", compare<U32, [](U32 a, U32 b) { return half_word(a) != half_word(b); }>},
    {"setp.lt.u16", "p=hh", compare<U32, [](U32 a, U32 b) { return half_word(a) < half_word(b); }>},
    {"setp.gt.u16", "p=hh", compare<U32, [](U32 a, U32 b) { return half_word(b) < half_word(a); }>},
    {"setp.lt.s32", "p=rr", compare<S32, [](S32 a, S32 b) { return a < b; }>},
    {"setp.le.s32", "p=rr", compare<S32, [](S32 a, S32 b) { return a <= b; }>},
    {"setp.gt.s32", "p=rr", compare<S32, greater<S32>>},
    {"setp.ge.s32", "p=rr", compare<S32, greater_equal<S32>>},
    {"setp.lt.u32", "p=rr", compare<U32, [](U32 a, U32 b) { return a < b; }>},
    {"setp.le.u32", "p=rr", compare<U32, [](U32 a, U32 b) { return a <= b; }>},
    {"setp.gt.u32", "p=rr", compare<U32, greater<U32>>},
    {"setp.ge.u32", "p=rr", compare<U32, greater_equal<U32>>},
    {"setp.eq.s64", "p=dd", compare<U64, [](U64 a, U64 b) { return a == b; }>},
    {"setp.ne.s64", "p=dd", compare<U64, [](U64 a, U64 b) { return a != b; }>},
    {"setp.lt.s64", "p=dd", compare<S64, [](S64 a, S64 b) { return a < b; }>},
    {"setp.le.s64", "p=dd", compare<S64, [](S64 a, S64 b) { return a <= b; }>},
    {"setp.gt.s64", "p=dd", compare<S64, greater<S64>>},
    {"setp.ge.s64", "p=dd", compare<S64, greater_equal<S64>>},
    {"setp.lt.u64", "p=dd", compare<U64, [](U64 a, U64 b) { return a < b; }>},
    {"setp.gt.u64", "p=dd", compare<U64, greater<U64>>},
    {"setp.eq.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return a == b; }>},
    {"setp.lt.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return a < b; }>},
    {"setp.le.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return a <= b; }>},
    {"setp.gt.f32", "p=rr", compare<F32, greater<F32>>},
    {"setp.ge.f32", "p=rr", compare<F32, greater_equal<F32>>},
    {"setp.neu.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return !(a == b); }>},
    {"setp.ltu.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return !greater_equal(a, b); }>},
    {"setp.leu.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return !greater(a, b); }>},
    {"setp.gtu.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return !(a <= b); }>},
    {"setp.geu.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return !(a < b); }>},
    {"setp.gt.f64", "p=dd", compare<F64, greater<F64>>},
    {"setp.gtu.f64", "p=dd", compare<F64, [](F64 a, F64 b) { return !(a <= b); }>},
    {"setp.leu.f64", "p=dd", compare<F64, [](F64 a, F64 b) { return !greater(a, b); }>},
    {"setp.nan.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return a != a || b != b; }>},
    {"setp.num.f32", "p=rr", compare<F32, [](F32 a, F32 b) { return a == a && b == b; }>},

    {"add.rn.f32", "r=rr", binary<F32, F32, F32, add>},
    {"add.f32", "r=rr", binary<F32, F32, F32, add>},
    {"sub.rn.f32", "r=rr", binary<F32, F32, F32, subtract>},
    {"sub.rm.f32", "r=rr", binary<F32, F32, F32, subtract_down>},
    {"sub.f32", "r=rr", binary<F32, F32, F32, subtract>},
    {"mul.rn.f32", "r=rr", binary<F32, F32, F32, multiply>},
    {"mul.f32", "r=rr", binary<F32, F32, F32, multiply>},
    {"mul.rp.f32", "r=rr", binary<F32, F32, F32, multiply_up>},
    {"fma.rn.f32", "r=rrr", ternary<F32, F32, F32, F32, fused>},
    {"div.rn.f32", "r=rr", binary<F32, F32, F32, divide>},
    {"min.f32", "r=rr", binary<F32, F32, F32, minimum>},
    {"max.f32", "r=rr", binary<F32, F32, F32, maximum>},
    {"neg.f32", "r=r", unary<F32, F32, [](F32 a) { return quiet(-a); }>},
    {"abs.f32", "r=r", unary<F32, F32, [](F32 a) { return quiet(std::abs(a)); }>},
    {"rcp.rn.f32", "r=r", unary<F32, F32, [](F32 a) { return divide(1.0f, a); }>},
    {"sqrt.rn.f32", "r=r", unary<F32, F32, [](F32 a) { return quiet(std::sqrt(a)); }>},
    {"copysign.f32", "r=rr", binary<U32, U32, U32, [](U32 a, U32 b) { return (a & 0x80000000u) | (b & 0x7FFFFFFFu); }>},
    {"add.rn.f64", "d=dd", binary<F64, F64, F64, add_wide>},
    {"mul.rn.f64", "d=dd", binary<F64, F64, F64, multiply_wide>},
    {"div.rn.f64", "d=dd", binary<F64, F64, F64, [](F64 a, F64 b) { return a / b; }>},
    {"max.f64", "d=dd", binary<F64, F64, F64, larger_number>},
    {"neg.f64", "d=d", unary<F64, F64, [](F64 a) { return a != a ? quiet_nan(a) : -a; }>},
    {"ex2.approx.ftz.f32", "r=r", unary<F32, F32, exp2_flushed>},

    {"max.f16x2", "r=rr", binary<U32, U32, U32, both_halves<max_half, U32, U32>>},
    {"fma.rn.f16x2", "r=rrr", ternary<U32, U32, U32, U32, both_halves<fused_half, U32, U32, U32>>},
    {"fma.rn.relu.f16x2", "r=rrr",
     ternary<U32, U32, U32, U32, both_halves<[](U32 a, U32 b, U32 c) { return relu_half(fused_half(a, b, c)); }, U32, U32, U32>>},

    {"fma.rn.bf16x2", "r=rrr", ternary<U32, U32, U32, U32, both_halves<fused_bfloat, U32, U32, U32>>},
    {"sub.bf16x2", "r=rr", binary<U32, U32, U32, both_halves<subtract_bfloat, U32, U32>>},
    {"set.eq.bf16x2.bf16x2", "r=rr", binary<U32, U32, U32, both_halves<equal_bfloat, U32, U32>>},

    {"cvt.f64.f32", "d=r", unary<F64, F32, [](F32 a) { return static_cast<F64>(a); }>},
    {"cvt.rn.f32.f64", "r=d", unary<F32, F64, [](F64 a) { return static_cast<F32>(a); }>},
    {"cvt.rn.f64.s32", "d=r", unary<F64, S32, [](S32 a) { return static_cast<F64>(a); }>},
    {"cvt.rpi.f64.f64", "d=d", unary<F64, F64, [](F64 a) { return std::ceil(a); }>},
    {"cvt.rn.f32.s64", "r=d", unary<F32, S64, [](S64 a) { return static_cast<F32>(a); }>},
    {"cvt.rn.f32.u16", "r=h", unary<F32, U32, [](U32 a) { return static_cast<F32>(half_word(a)); }>},
    {"cvt.rzi.u32.f32", "r=r", unary<U32, F32, truncate_to_unsigned>},
    {"cvt.u64.u16", "d=h", unary<U64, U32, [](U32 a) { return U64{half_word(a)}; }>},
    {"cvt.f32.bf16", "r=h", unary<U32, U32, [](U32 a) { return a << 16; }>},
    {"cvt.rn.bf16.f32", "h=r", unary<U32, F32, to_bf16>},
    {"cvt.rn.f16x2.e4m3x2", "r=h", unary<U32, U32, [](U32 a) { return e4m3_to_half(a & 0xFFu) | (e4m3_to_half((a >> 8) & 0xFFu) << 16); }>},
    {"cvt.u32.u64", "r=d", unary<U32, U64, [](U64 a) { return static_cast<U32>(a); }>},
    {"cvt.u64.u32", "d=r", unary<U64, U32, [](U32 a) { return U64{a}; }>},
    {"cvt.s64.s32", "d=r", unary<S64, S32, [](S32 a) { return S64{a}; }>},
    {"cvt.s64.s32", "d=d", unary<S64, S64, [](S64 a) { return S64{static_cast<S32>(a)}; }>},
    {"cvt.u32.u16", "r=h", kCopy32},
    {"cvt.s32.s16", "r=h", unary<S32, U32, [](U32 a) { return S32{static_cast<std::int16_t>(a)}; }>},
    {"cvt.u16.u32", "h=r", unary<U32, U32, [](U32 a) { return a & 0xFFFFu; }>},
    {"cvt.f32.f16", "r=h", unary<F32, U32, [](U32 a) { return quiet(from_half(a)); }>},
    {"cvt.rn.f16.f32", "h=r", unary<U32, F32, to_half>},
    {"cvt.rn.f32.s16", "r=h", unary<F32, U32, [](U32 a) { return static_cast<F32>(static_cast<std::int16_t>(a)); }>},
    {"cvt.rn.f32.s32", "r=r", unary<F32, S32, [](S32 a) { return static_cast<F32>(a); }>},
    {"cvt.rn.f32.u32", "r=r", unary<F32, U32, [](U32 a) { return static_cast<F32>(a); }>},
    {"cvt.rpi.f32.f32", "r=r", unary<F32, F32, [](F32 a) { return quiet(std::ceil(a)); }>},
    {"cvt.rzi.s32.f32", "r=r", unary<S32, F32, truncate_to_int>},
    {"cvt.rn.bf16x2.f32", "r=rr", binary<U32, F32, F32, pack<to_bf16, 16>>},
    {"cvt.rn.f16x2.f32", "r=rr", binary<U32, F32, F32, pack<to_half, 16>>},
    {"cvt.rn.satfinite.e4m3x2.f32", "h=rr", binary<U32, F32, F32, pack<to_e4m3, 8>>},
};

}  // namespace

std::span<Form const> lane_forms() { return kForms; }

}  // namespace vcattn::emulator::VCATTN_ISA
