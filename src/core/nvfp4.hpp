#pragma once

// NVFP4 two-level scaling: 16 E2M1 codes share a UE4M3 scale, all of them an FP32 descale. [EQ-NVFP4]
//   real = e2m1(code) * ue4m3(sf) * descale,   descale = amax / (448 * 6),   sf = UE4M3(amax16 / 6 / descale)

#include "core/e2m1.hpp"
#include "core/e4m3.hpp"

namespace vcattn::core {

inline constexpr int kNvfp4Group = 16;
inline constexpr float kNvfp4Range = kE4m3Max * kE2m1Max;  // 2688

/// Second-level descale of values up to `amax`; 1 below kAmaxFloor.
VCATTN_HD constexpr float nvfp4_descale(float amax) { return amax < kAmaxFloor ? 1.0f : amax / kNvfp4Range; }

/// Block scale of 16 values whose largest magnitude is `amax16` in units of the second-level descale.
VCATTN_HD constexpr std::uint8_t nvfp4_block_scale(float amax16) { return ue4m3_encode(amax16 / kE2m1Max); }

/// Factor that brings a value (in units of the descale) to E2M1 units; 0 for a block whose scale is 0.
VCATTN_HD constexpr float nvfp4_block_inverse(std::uint8_t sf) { return sf == 0 ? 0.0f : 1.0f / ue4m3_decode(sf); }

}  // namespace vcattn::core
