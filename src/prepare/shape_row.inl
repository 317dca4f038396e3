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
  alignas(64) float target[256];
  for (int d = 0; d < width; ++d) target[d] = x[d];
  for (int d = 0; d < width; ++d) {
    float const block_factor = scale_factors == nullptr ? 1.0f : core::ue4m3_decode(scale_factors[d / 16]);
    float const value = round_to_code(shaper.format, target[d], shaper.limit, block_factor);
    float const delta = value - x[d];
    x[d] = value;
    float const* const row = shaper.feedback + static_cast<std::int64_t>(d) * width;
    for (int f = d + 1; f < width; ++f) target[f] = core::fma_f32(-delta, row[f], target[f]);
  }
}

}  // namespace vcattn::preparation::VCATTN_ISA
