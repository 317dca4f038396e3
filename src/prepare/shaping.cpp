#include "prepare/shaping.hpp"

namespace vcattn::preparation {

namespace {

constexpr double kDamping = 0.01;  // keeps the factorisation well conditioned and channels without energy in place

}  // namespace

void Moment::add(double factor, std::vector<double> const& integer_moment) {
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += factor * integer_moment[i];
}

std::vector<float> feedback_matrix(Moment h) {
  int const n = h.width();
  std::vector<float> feedback(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), 0.0f);
  double trace = 0.0;
  for (int i = 0; i < n; ++i) trace += h.at(i, i);
  if (!(trace > 0.0)) return feedback;
  for (int i = 0; i < n; ++i) h.at(i, i) += kDamping * trace / n;
  // H = U diag U^T, columns from the last to the first; U overwrites the part above the diagonal, diag the diagonal.
  for (int j = n - 1; j >= 0; --j) {
    double diagonal = h.at(j, j);
    for (int k = j + 1; k < n; ++k) diagonal -= h.at(j, k) * h.at(j, k) * h.at(k, k);
    h.at(j, j) = diagonal;
    for (int i = 0; i < j; ++i) {
      double value = h.at(i, j);
      for (int k = j + 1; k < n; ++k) value -= h.at(i, k) * h.at(j, k) * h.at(k, k);
      h.at(i, j) = value / diagonal;
      feedback[static_cast<std::size_t>(i * n + j)] = static_cast<float>(h.at(i, j));
    }
  }
  return feedback;
}

namespace baseline {
void shape_row(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
}
#if defined(__x86_64__)
namespace avx2 {
void shape_row(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
}
namespace avx512 {
void shape_row(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
}
#endif

ShapeRow shape_row_kernel(device::cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == device::cpu::Isa::avx2) return avx2::shape_row;
  if (isa == device::cpu::Isa::avx512) return avx512::shape_row;
#endif
  (void)isa;
  return baseline::shape_row;
}

}  // namespace vcattn::preparation
