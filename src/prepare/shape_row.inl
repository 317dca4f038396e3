// Compiled once per instruction set (VCATTN_ISA): the feedback is a vector fused multiply-add per channel. [EQ-SHAPED]

#include "core/e2m1.hpp"
#include "core/e4m3.hpp"
#include "prepare/shaping.hpp"

namespace vcattn::preparation::VCATTN_ISA {

namespace {

/// Value of the code nearest to t.
inline __attribute__((always_inline)) float round_to_code(formats::CodeFormat format, float t, float limit, float block_factor) {
  float const clamped = core::min_f32(core::max_f32(t, -limit), limit);
  switch (format) {
    case formats::CodeFormat::e4m3:
      return core::e4m3_decode(core::e4m3_encode(clamped));
    case formats::CodeFormat::int8:
      return core::rint_small(clamped);
    case formats::CodeFormat::nvfp4:
      return block_factor == 0.0f ? 0.0f : core::e2m1_decode(core::e2m1_encode(t * (1.0f / block_factor))) * block_factor;
    default:
      return t;
  }
}

}  // namespace

void shape_row(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x);
void shape_row(RowShaper const& shaper, std::uint8_t const* scale_factors, float* x) {
  int const width = shaper.width;
  Feedback const& feedback = *shaper.feedback;
  float unit = 1.0f;
  if (scale_factors != nullptr) {
    unit = 0.0f;
    for (int g = 0; g < width / core::kNvfp4Group; ++g) unit = core::max_f32(unit, core::ue4m3_decode(scale_factors[g]));
  }
  float const step = unit / kErrorSteps;
  float const steps_per_unit = unit > 0.0f ? kErrorSteps / unit : 0.0f;
  alignas(64) float sums[256] = {};  // integers: exact in any order
  for (int begin = 0; begin < width; begin += kShapedBlock) {
    float const block_factor = scale_factors == nullptr ? 1.0f : core::ue4m3_decode(scale_factors[begin / core::kNvfp4Group]);
    alignas(64) float target[kShapedBlock];
    float steps[kShapedBlock];
    for (int f = 0; f < kShapedBlock; ++f) {
      float const from_blocks = feedback.descale[static_cast<std::size_t>(begin + f)] * step;
      target[f] = begin == 0 ? x[f] : core::fma_f32(from_blocks, sums[begin + f], x[begin + f]);
    }
    for (int d = 0; d < kShapedBlock; ++d) {
      float const value = round_to_code(shaper.format, target[d], shaper.limit, block_factor);
      float const error = value - target[d];
      x[begin + d] = value;
      steps[d] = core::rint_small(core::min_f32(core::max_f32(error * steps_per_unit, -formats::kInt8Max), formats::kInt8Max));
      float const* const row = feedback.within.data() + static_cast<std::ptrdiff_t>(begin + d) * width + begin;
      for (int f = d + 1; f < kShapedBlock; ++f) target[f] = core::fma_f32(error, row[f], target[f]);
    }
    for (int d = 0; d < kShapedBlock; ++d) {
      float const* const row = feedback.integer.data() + static_cast<std::ptrdiff_t>(begin + d) * width;
      for (int f = begin + kShapedBlock; f < width; ++f) sums[f] = core::fma_f32(steps[d], row[f], sums[f]);
    }
  }
}

}  // namespace vcattn::preparation::VCATTN_ISA
