// Compiled once per instruction set (VCATTN_ISA). Eigen is header-only and picks its kernels at compile time, so each set gets an Eigen
// namespace of its own: otherwise the linker would keep one copy of every template, for whichever processor.

#define VCATTN_CONCAT_(a, b) a##b
#define VCATTN_CONCAT(a, b) VCATTN_CONCAT_(a, b)
#define Eigen VCATTN_CONCAT(vcattn_eigen_, VCATTN_ISA)
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG

#include <Eigen/Core>

#include "device/cpu/gemm.hpp"

namespace vcattn::device::cpu::VCATTN_ISA {

namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using ConstMap = Eigen::Map<Matrix<T> const, 0, Eigen::OuterStride<>>;
template <typename T>
using Map = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;

template <typename T>
void nt(Index m, Index n, Index k, T const* a, Index lda, T const* b, Index ldb, T* c, Index ldc) {
  Map<T>(c, m, n, Eigen::OuterStride<>(ldc)).noalias() =
      ConstMap<T>(a, m, k, Eigen::OuterStride<>(lda)) * ConstMap<T>(b, n, k, Eigen::OuterStride<>(ldb)).transpose();
}

template <typename T>
void nn_add(Index m, Index n, Index k, T const* a, Index lda, T const* b, Index ldb, T* c, Index ldc) {
  Map<T>(c, m, n, Eigen::OuterStride<>(ldc)).noalias() +=
      ConstMap<T>(a, m, k, Eigen::OuterStride<>(lda)) * ConstMap<T>(b, k, n, Eigen::OuterStride<>(ldb));
}

}  // namespace

extern GemmKernels const kGemmKernels;
GemmKernels const kGemmKernels = {nt<float>, nt<double>, nn_add<float>, nn_add<double>};

}  // namespace vcattn::device::cpu::VCATTN_ISA
