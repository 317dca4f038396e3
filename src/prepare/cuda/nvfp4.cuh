#pragma once

// NVFP4 without conversion instructions: scale factors of 16 values, packed E2M1 codes. [EQ-NVFP4]

#include <cstdint>

#include "core/nvfp4.hpp"
#include "device/ptx/packed.cuh"

namespace vcattn::preparation::cuda {

/// UE4M3 scale factor of 16 values whose largest magnitude is amax16 in units of the descale.
struct ScaleFactor {
  std::uint32_t code;
  float value;
  float inverse;  // 0 where the value is 0

  __device__ __forceinline__ static ScaleFactor of(float amax16) {
    ScaleFactor sf;
    sf.code = ptx::pack_e4m3x2(amax16 / core::kE2m1Max, 0.0f);
    sf.value = ptx::low_float(ptx::unpack_e4m3x2(sf.code));
    sf.inverse = sf.code == 0 ? 0.0f : 1.0f / sf.value;
    return sf;
  }
};

/// Byte kByte of four words.
template <int kByte>
__device__ __forceinline__ std::uint32_t byte_of_each(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  constexpr unsigned kPair = kByte | (kByte + 4) << 4;
  return __byte_perm(__byte_perm(a, b, kPair), __byte_perm(c, d, kPair), 0x5410);
}

/// E2M1 codes of eight values, the first in the lowest four bits.
__device__ __forceinline__ std::uint32_t pack_e2m1x8(float const (&x)[8], core::E2m1Magnitude const (&magnitude)[8]) {
  std::uint32_t bytes[2];  // of the values with an even index, and of the others; the upper half of a byte has no meaning
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    std::uint32_t const codes = byte_of_each<0>(magnitude[i].code, magnitude[2 + i].code, magnitude[4 + i].code, magnitude[6 + i].code);
    std::uint32_t const signs =
        byte_of_each<3>(core::f32_bits(x[i]), core::f32_bits(x[2 + i]), core::f32_bits(x[4 + i]), core::f32_bits(x[6 + i])) >> 4;
    bytes[i] = (codes & 0xF7F7F7F7u) | (signs & 0x08080808u);
  }
  return (bytes[0] & 0x0F0F0F0Fu) | (bytes[1] << 4 & 0xF0F0F0F0u);
}

}  // namespace vcattn::preparation::cuda
