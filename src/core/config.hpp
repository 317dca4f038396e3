#pragma once

// Host+device decoration and bit casts shared by all of core/.
//
// Core functions are always inlined: the CPU back end compiles them once per instruction set, and an out-of-line copy would let the linker
// merge code for different processors.

#include <cstdint>

#if defined(__CUDACC__)
#define VCATTN_HD __host__ __device__ __forceinline__
#else
#define VCATTN_HD inline __attribute__((always_inline))
#endif

namespace vcattn::core {

VCATTN_HD constexpr std::uint32_t f32_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
VCATTN_HD constexpr float f32_from_bits(std::uint32_t u) { return __builtin_bit_cast(float, u); }

VCATTN_HD constexpr bool is_nan(float x) { return (f32_bits(x) & 0x7FFFFFFFu) > 0x7F800000u; }
VCATTN_HD constexpr bool is_finite(float x) { return (f32_bits(x) & 0x7F800000u) != 0x7F800000u; }
VCATTN_HD constexpr float abs_f32(float x) { return f32_from_bits(f32_bits(x) & 0x7FFFFFFFu); }
VCATTN_HD constexpr float min_f32(float a, float b) { return a < b ? a : b; }
VCATTN_HD constexpr float max_f32(float a, float b) { return a < b ? b : a; }
/// Below this the largest magnitude of a block counts as 0 and its descale is 1: reciprocals stay finite.
inline constexpr float kAmaxFloor = 0x1p-100f;

/// a * b + c, rounded once.
VCATTN_HD constexpr float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23: its ulp is 1

/// Nearest integer, ties to even, for |x| < 2^22.
VCATTN_HD constexpr float rint_small(float x) { return (x + kRoundMagic) - kRoundMagic; }

}  // namespace vcattn::core
