#pragma once

// Packed-half and byte instructions of the softmax. A 32-bit register holds two FP16 numbers, `low` first.

#include <cstdint>

namespace vcattn::ptx {

using Half2 = std::uint32_t;

__device__ __forceinline__ Half2 max_half2(Half2 a, Half2 b) {
  Half2 d;
  asm("max.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
  Half2 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// The same of BF16 numbers.
__device__ __forceinline__ std::uint32_t fma_bfloat2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// max(a b + c, 0).
__device__ __forceinline__ Half2 fma_relu_half2(Half2 a, Half2 b, Half2 c) {
  Half2 d;
  asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// Both floats to FP16, nearest even.
__device__ __forceinline__ Half2 pack_half2(float low, float high) {
  Half2 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
/// The same to BF16.
__device__ __forceinline__ std::uint32_t pack_bfloat2(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ float low_float(Half2 x) {
  float d;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(d) : "r"(x));
  return d;
}
__device__ __forceinline__ float high_float(Half2 x) {
  float d;
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(d) : "r"(x));
  return d;
}
/// Bytes of {a, b} in the order of the selector's nibbles, lowest first.
__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}
/// Two E4M3 codes, nearest even, saturating; `low` in the low byte.
__device__ __forceinline__ std::uint32_t pack_e4m3x2(float low, float high) {
  std::uint16_t d;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
  return d;
}
/// The values of two E4M3 codes.
__device__ __forceinline__ Half2 unpack_e4m3x2(std::uint32_t codes) {
  Half2 d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(static_cast<std::uint16_t>(codes)));
  return d;
}
/// 2^x, approximate (2 ulp), subnormal results flushed to 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

}  // namespace vcattn::ptx
