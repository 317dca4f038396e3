#pragma once

// Warp-wide matrix products on registers (mma.sync) and the loads of their operands.

#include <cstdint>

namespace vcattn::ptx {

/// d += a b for a 16 x 16 (row-major), b 16 x 8, BF16 in, FP32 out. With g = lane / 4 and t = lane % 4, a0, a1 hold (g, g + 8; 2t, 2t + 1),
/// a2, a3 the same rows at column + 8, b0, b1 rows 2t, 2t + 1 and + 8 of column g, d (g; 2t, 2t + 1) and (g + 8; 2t, 2t + 1).
__device__ __forceinline__ void mma_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// d += a b for a 16 x 32 (row-major), b 32 x 8, signed bytes in, 32-bit integers out: a0 holds (g; 4t .. 4t + 3), a1 row g + 8, a2, a3 the
/// same at column + 16, b0 rows 4t .. 4t + 3 of column g, b1 the same at row + 16, d as above.
__device__ __forceinline__ void mma_s8(std::int32_t (&d)[4], uint4 const& a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices of 16-bit elements (or 8 x 16 bytes): lane i gives the address of row i % 8 of matrix i / 8, and gets of every
/// matrix elements (g, 2t) and (g, 2t + 1).
__device__ __forceinline__ uint4 load_matrices(void const* smem_row) {
  uint4 d;
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(smem_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address)
               : "memory");
  return d;
}

/// Four 8 x 8 matrices of 16-bit elements, transposed: lane i gives the address of row i % 8 of matrix i / 8, and gets of every matrix
/// elements (2t, g) and (2t + 1, g).
__device__ __forceinline__ uint4 load_matrices_transposed(void const* smem_row) {
  uint4 d;
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(smem_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
               : "r"(address)
               : "memory");
  return d;
}

}  // namespace vcattn::ptx
