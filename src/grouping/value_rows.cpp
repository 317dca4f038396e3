#include "grouping/value_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "formats/tensor_check.hpp"
#include "formats/tensor_rows.hpp"

namespace vcattn::grouping {

void read_row(TensorView const& v, std::int64_t batch, std::int64_t row, std::int64_t head, float* out) {
  formats::read_row(v, batch * v.stride[0] + row * v.stride[1] + head * v.stride[2], out);
}

std::vector<std::int32_t> checked_valid_rows(TensorView const& v, std::span<std::int32_t const> seqused_k) {
  auto const refuse = [](std::string const& text) { throw Error(ErrorCode::invalid_argument, text); };
  bool shape_ok = v.batch() >= 0 && v.seqlen() >= 0 && v.num_heads() >= 1 && v.head_dim() >= 1 &&
                  v.seqlen() <= std::numeric_limits<std::int32_t>::max();
  std::int64_t elements = 1;  // an empty dimension counts as one, so that no product of some extents overflows either
  for (std::int64_t const extent : v.shape) {
    shape_ok = shape_ok && !__builtin_mul_overflow(elements, std::max<std::int64_t>(extent, 1), &elements);
  }
  if (!shape_ok) {
    refuse(
        fmt::format("v must be [batch >= 0, 0 <= seqlen < 2^31, num_heads >= 1, head_dim >= 1] with a product below 2^63, got [{}]: "
                    "check the shape",
                    fmt::join(v.shape, ", ")));
  }
  if (v.dtype != DType::f32 && v.dtype != DType::f16 && v.dtype != DType::bf16) {
    refuse(fmt::format("v must be f32, f16 or bf16, got dtype code {}: convert it", static_cast<std::uint32_t>(v.dtype)));
  }
  formats::check_view(v, "v");
  if (seqused_k.empty()) return std::vector<std::int32_t>(static_cast<std::size_t>(v.batch()), static_cast<std::int32_t>(v.seqlen()));
  if (static_cast<std::int64_t>(seqused_k.size()) != v.batch()) {
    refuse(fmt::format("seqused_k must have one entry per batch entry ({}), got {}: pass [B] or nothing", v.batch(), seqused_k.size()));
  }
  for (std::int32_t const used : seqused_k) {
    if (used < 0 || used > v.seqlen()) refuse(fmt::format("seqused_k must lie in 0..{}, got {}: count the valid keys", v.seqlen(), used));
  }
  return {seqused_k.begin(), seqused_k.end()};
}

}  // namespace vcattn::grouping
