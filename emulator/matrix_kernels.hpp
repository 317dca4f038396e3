#pragma once

// Products of a warp's 16 rows, for each instruction set of the host: d[16][n] += a[16][k] b[n][k]^T. Plain arrays, row after row.

#include <cstdint>

#include "device/cpu/isa.hpp"

namespace vcattn::emulator {

inline constexpr int kWarpRows = 16;
inline constexpr int kMaxColumns = 256;

/// E4M3, k = 32; f16: sums are rounded to FP16 (d holds FP16 numbers as floats).
using MultiplyE4m3 = void (*)(std::uint8_t const* a, std::uint8_t const* b, int n, bool f16, float* d);
/// FP16, k = 16. b: [16][n].
using MultiplyF16 = void (*)(std::uint16_t const* a, std::uint16_t const* b, int n, float* d);
/// INT8, k = 32, INT32 sums that wrap.
using MultiplyS8 = void (*)(std::uint8_t const* a, std::uint8_t const* b, int n, std::int32_t* d);

/// Sums of a warp between its registers, 32 lanes each, and a plain array. Register 4 g + 2 r + i of a lane holds row lane / 4 + 8 r,
/// column 8 g + 2 (lane % 4) + i; of FP16 sums one register holds both i.
using LoadSums = void (*)(std::uint32_t const* const* registers, int n, float* sums);
using StoreSums = void (*)(float const* sums, int n, std::uint32_t* const* registers);

struct MatrixKernels {
  LoadSums load_f16, load_f32;
  StoreSums store_f16, store_f32;
  MultiplyE4m3 e4m3_exact, e4m3_fast;
  MultiplyF16 f16_exact, f16_fast;
  MultiplyS8 s8;
};

namespace baseline {
MatrixKernels matrix_kernels();
}
namespace avx2 {
MatrixKernels matrix_kernels();
}
namespace avx512 {
MatrixKernels matrix_kernels();
}

/// Those of one of device::cpu::available_isas().
MatrixKernels matrix_kernels(device::cpu::Isa isa);

}  // namespace vcattn::emulator
