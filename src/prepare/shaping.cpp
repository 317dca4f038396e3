#include "prepare/shaping.hpp"

namespace vcattn::preparation {

void Moment::add(double factor, std::vector<double> const& integer_moment) {
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += factor * integer_moment[i];
}

Feedback feedback_of(Moment const& moment) {
  int const n = moment.width();
  auto const size = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  Feedback feedback{std::vector<float>(size, 0.0f), std::vector<float>(size, 0.0f), std::vector<float>(static_cast<std::size_t>(n), 1.0f)};
  double trace = 0.0;
  for (int i = 0; i < n; ++i) trace += moment.at(i, i);
  if (!(trace > 0.0)) return feedback;
  std::vector<float> elements(size);
  auto const h = [&](int i, int j) -> float& { return elements[static_cast<std::size_t>(i * n + j)]; };
  double const to_mean_of_one = n / trace;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) h(i, j) = static_cast<float>(moment.at(i, j) * to_mean_of_one);
    h(i, i) += kMomentDamping;
  }
  // H = U diag U^T, columns from the last to the first. U overwrites the part above the diagonal.
  std::vector<float> column(static_cast<std::size_t>(n));
  for (int j = n - 1; j > 0; --j) {
    for (int i = 0; i < j; ++i) {
      column[static_cast<std::size_t>(i)] = h(i, j);
      h(i, j) = h(i, j) / h(j, j);
    }
    for (int i = 0; i < j; ++i) {
      for (int l = 0; l <= i; ++l) h(l, i) -= h(l, j) * column[static_cast<std::size_t>(i)];
    }
  }
  // W = U^-1, transposed into the part below the diagonal.
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) h(j, i) = -h(i, j);
  }
  for (int k = 1; k < n; ++k) {
    for (int i = 0; i < k; ++i) {
      for (int j = k + 1; j < n; ++j) h(j, i) -= h(k, i) * h(k, j);
    }
  }
  for (int f = 0; f < n; ++f) {
    int const block_begin = f / kShapedBlock * kShapedBlock;
    float largest = 0.0f;
    for (int d = 0; d < f; ++d) {
      float const w = h(f, d);
      if (d >= block_begin) feedback.within[static_cast<std::size_t>(d * n + f)] = w;
      if (d < block_begin) largest = core::max_f32(largest, core::abs_f32(w));
    }
    if (largest < core::kAmaxFloor) continue;
    float const inverse = formats::kInt8Max / largest;
    feedback.descale[static_cast<std::size_t>(f)] = largest / formats::kInt8Max;
    for (int d = 0; d < block_begin; ++d) feedback.integer[static_cast<std::size_t>(d * n + f)] = core::rint_small(h(f, d) * inverse);
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
