#pragma once

// Small single-threaded matrix products on row-major FP32 and FP64 tiles, by Eigen, compiled once per instruction set.

#include <cstdint>

#include "device/cpu/isa.hpp"

namespace vcattn::device::cpu {

using Index = std::int64_t;

struct GemmKernels {
  /// C[m, n] = A[m, k] * B[n, k]^T; leading dimensions in elements.
  void (*nt_f32)(Index m, Index n, Index k, float const* a, Index lda, float const* b, Index ldb, float* c, Index ldc);
  void (*nt_f64)(Index m, Index n, Index k, double const* a, Index lda, double const* b, Index ldb, double* c, Index ldc);
  /// C[m, n] += A[m, k] * B[k, n].
  void (*nn_add_f32)(Index m, Index n, Index k, float const* a, Index lda, float const* b, Index ldb, float* c, Index ldc);
  void (*nn_add_f64)(Index m, Index n, Index k, double const* a, Index lda, double const* b, Index ldb, double* c, Index ldc);
};

/// Kernels of an available instruction set.
GemmKernels const& gemm_kernels(Isa isa);

}  // namespace vcattn::device::cpu
