#include "dispatch/validate.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/half.hpp"
#include "device/cpu/parallel.hpp"
#include "dispatch/cuda.hpp"
#include "formats/prepared_layout.hpp"
#include "formats/tensor_check.hpp"

namespace vcattn {

namespace dispatch {

using formats::check_view;
using formats::shape_text;

namespace {

[[noreturn]] void invalid(std::string const& text) { throw Error(ErrorCode::invalid_argument, text); }
[[noreturn]] void unsupported(std::string const& text) { throw Error(ErrorCode::unsupported, text); }

void check_cu_seqlens(std::span<std::int32_t const> cu, std::int64_t total, std::string const& name) {
  if (cu.size() < 2 || cu.front() != 0 || cu.back() != total || !std::is_sorted(cu.begin(), cu.end())) {
    invalid(name + " must ascend from 0 to the number of rows (" + std::to_string(total) + ") with one entry more than sequences; got " +
            std::to_string(cu.size()) + " entries" +
            (cu.empty() ? "" : " from " + std::to_string(cu.front()) + " to " + std::to_string(cu.back())));
  }
}

void check_rope(Rope const& rope, std::int64_t rows, std::int64_t head_dim) {
  if (rope.cos == nullptr || rope.sin == nullptr) invalid("rope needs both tables; got a null pointer for cos or sin");
  if (rope.rows < rows) invalid("rope tables need a row per position, " + std::to_string(rows) + "; got " + std::to_string(rope.rows));
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.first_channel < 0 || rope.rotary_dim > head_dim - rope.first_channel) {
    invalid("rope must rotate an even number of channels inside head_dim " + std::to_string(head_dim) + "; got " +
            std::to_string(rope.rotary_dim) + " from channel " + std::to_string(rope.first_channel));
  }
}

void check_lengths(Problem const& p) {
  bool const varlen = !p.cu_seqlens_q.empty() || !p.cu_seqlens_k.empty();
  std::int64_t batch = p.q.batch();
  if (varlen) {
    if (p.q.batch() != 1)
      invalid("varlen calls take q, k, v with batch 1 and all sequences packed along seqlen; got batch " + std::to_string(p.q.batch()));
    check_cu_seqlens(p.cu_seqlens_q, p.q.seqlen(), "cu_seqlens_q");
    check_cu_seqlens(p.cu_seqlens_k, p.k.seqlen(), "cu_seqlens_k");
    if (p.cu_seqlens_q.size() != p.cu_seqlens_k.size()) {
      invalid("cu_seqlens_q and cu_seqlens_k must describe the same number of sequences; got " + std::to_string(p.cu_seqlens_q.size() - 1) +
              " and " + std::to_string(p.cu_seqlens_k.size() - 1));
    }
    batch = static_cast<std::int64_t>(p.cu_seqlens_q.size()) - 1;
  }
  if (p.seqused_k.empty()) return;
  if (static_cast<std::int64_t>(p.seqused_k.size()) != batch) {
    invalid("seqused_k needs one length per batch entry (" + std::to_string(batch) + "); got " + std::to_string(p.seqused_k.size()));
  }
  for (std::size_t b = 0; b < p.seqused_k.size(); ++b) {
    std::int64_t const rows = varlen ? p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b] : p.k.seqlen();
    if (p.seqused_k[b] < 0 || p.seqused_k[b] > rows) {
      invalid("seqused_k[" + std::to_string(b) + "] must be in 0.." + std::to_string(rows) + "; got " + std::to_string(p.seqused_k[b]));
    }
  }
}

}  // namespace

void check_problem(Problem const& p, Options const& options) {
  validate_options(options);
  check_view(p.q, "q");
  check_view(p.k, "k");
  check_view(p.v, "v");
  if (p.k.shape != p.v.shape)
    invalid("k and v must have the same shape [B, Sk, Hkv, D]; got " + shape_text(p.k.shape) + " and " + shape_text(p.v.shape));
  if (p.q.batch() != p.k.batch() || p.q.head_dim() != p.k.head_dim()) {
    invalid("q [B, Sq, H, D] and k [B, Sk, Hkv, D] must agree in batch and head_dim; got " + shape_text(p.q.shape) + " and " +
            shape_text(p.k.shape));
  }
  if (p.q.batch() < 1 || p.q.num_heads() < 1 || p.k.num_heads() < 1) {
    invalid("batch and num_heads must be at least 1; got q [B, Sq, H, D] = " + shape_text(p.q.shape) +
            ", k [B, Sk, Hkv, D] = " + shape_text(p.k.shape));
  }
  if (p.q.num_heads() % p.k.num_heads() != 0) {
    invalid("num_heads of q must be a multiple of num_heads of k and v; got " + std::to_string(p.q.num_heads()) + " and " +
            std::to_string(p.k.num_heads()));
  }
  std::int64_t const d = p.q.head_dim();
  bool const nvfp4 = options.qk == QkFormat::nvfp4;
  std::int64_t const step = nvfp4 ? 16 : 8;
  if (d < 32 || d > 256 || d % step != 0) {
    unsupported("head_dim must be a multiple of " + std::to_string(step) + " in 32..256" + (nvfp4 ? " for NVFP4 Q and K" : "") + "; got " +
                std::to_string(d) + "; pad head_dim with zeros and pass the softmax scale of the unpadded size");
  }
  constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() - 256;
  if (p.q.seqlen() > kMaxRows || p.k.seqlen() > kMaxRows) {
    unsupported("seqlen must be below 2^31; got " + std::to_string(std::max(p.q.seqlen(), p.k.seqlen())));
  }
  check_lengths(p);
  if (p.softmax_scale && !(std::isfinite(*p.softmax_scale) && std::isfinite(static_cast<float>(*p.softmax_scale)))) {
    invalid("the softmax scale must be finite in FP32; got " + std::to_string(*p.softmax_scale));
  }
  if (p.causal && (formats::resolve_order(options, true) != GroupOrder::sequence || !p.permutation.empty())) {
    unsupported("causal attention needs keys in sequence order; use order=sequence (or auto) and no permutation");
  }
  if (p.rope) check_rope(*p.rope, std::max(p.q.seqlen(), p.k.seqlen()), d);
  std::int64_t const entries = p.k.batch() * p.k.num_heads() * p.k.seqlen();
  if (!p.permutation.empty() && static_cast<std::int64_t>(p.permutation.size()) != entries) {
    invalid("permutation needs B * Hkv * Sk = " + std::to_string(entries) + " entries; got " + std::to_string(p.permutation.size()));
  }
}

void check_permutation(Problem const& p) {
  if (p.permutation.empty()) return;
  auto const plan = formats::plan_layout(p, recipe_options(Recipe::exact));
  std::vector<std::uint8_t> seen;
  for (std::size_t b = 0; b < plan.sequences.size(); ++b) {
    auto const& s = plan.sequences[b];
    for (std::int64_t h = 0; h < p.k.num_heads(); ++h) {
      std::int32_t const* const perm = p.permutation.data() + p.k.num_heads() * s.row_begin_kv + h * s.rows_kv;
      seen.assign(static_cast<std::size_t>(s.rows_kv), 0);
      for (std::int64_t i = 0; i < s.rows_kv; ++i) {
        std::int64_t const limit = i < s.seqlen_kv ? s.seqlen_kv : s.rows_kv;
        if (perm[i] < 0 || perm[i] >= limit || seen[static_cast<std::size_t>(perm[i])]++ != 0) {
          invalid("permutation must list every key row of a head once, valid keys (" + std::to_string(s.seqlen_kv) + ") first; batch " +
                  std::to_string(b) + ", kv head " + std::to_string(h) + ", position " + std::to_string(i) + " holds " +
                  std::to_string(perm[i]));
        }
      }
    }
  }
}

void check_device(Device device) {
  if (device != Device::cpu && device != Device::cuda)
    invalid("device must be cpu or cuda; got " + std::to_string(static_cast<std::uint32_t>(device)));
}

void check_lse(std::span<float const> lse, std::int64_t rows) {
  if (lse.empty() || std::ssize(lse) == rows) return;
  invalid("lse needs " + std::to_string(rows) + " floats [B, H, Sq]; got " + std::to_string(lse.size()) +
          "; pass that many or an empty span");
}

void check_output(MutableTensorView const& o, std::array<std::int64_t, 4> const& shape) {
  check_view(o, "o");
  if (o.shape != shape)
    invalid("o must have the shape of q, " + shape_text(shape) + "; got " + shape_text(o.shape) + "; allocate it with that shape");
  bool const has_elements = std::all_of(o.shape.begin(), o.shape.end(), [](std::int64_t size) { return size > 0; });
  for (std::size_t i = 0; has_elements && i < 4; ++i) {
    if (o.shape[i] > 1 && o.stride[i] == 0) invalid("o must not overlap itself; its stride of dimension " + std::to_string(i) + " is 0");
  }
}

namespace {

bool element_finite(TensorView const& t, std::int64_t offset) {
  switch (t.dtype) {
    case DType::f32:
      return core::is_finite(static_cast<float const*>(t.data)[offset]);
    case DType::f16:
      return (static_cast<std::uint16_t const*>(t.data)[offset] & 0x7C00u) != 0x7C00u;
    case DType::bf16:
      return (static_cast<std::uint16_t const*>(t.data)[offset] & 0x7F80u) != 0x7F80u;
  }
  return true;
}

/// Looks at rows [0, rows_of(b)) of every batch entry (varlen: batch 1, sequences one after another).
void check_tensor_finite(TensorView const& t, std::string const& name, std::vector<std::pair<std::int64_t, std::int64_t>> const& row_ranges,
                         bool varlen, std::int32_t num_threads) {
  for (std::size_t b = 0; b < row_ranges.size(); ++b) {
    auto const [begin, end] = row_ranges[b];
    std::int64_t const base = varlen ? 0 : static_cast<std::int64_t>(b) * t.stride[0];
    std::atomic<std::int64_t> first_bad{std::numeric_limits<std::int64_t>::max()};
    device::cpu::parallel_for(num_threads, end - begin, [&](std::int64_t i) {
      for (std::int64_t h = 0; h < t.num_heads(); ++h) {
        for (std::int64_t d = 0; d < t.head_dim(); ++d) {
          if (element_finite(t, base + (begin + i) * t.stride[1] + h * t.stride[2] + d * t.stride[3])) continue;
          std::int64_t seen = first_bad.load();
          while (begin + i < seen && !first_bad.compare_exchange_weak(seen, begin + i)) {
          }
          return;
        }
      }
    });
    if (first_bad.load() != std::numeric_limits<std::int64_t>::max()) {
      throw Error(ErrorCode::nonfinite, name + " must be finite in its valid rows; batch " + std::to_string(b) + ", row " +
                                            std::to_string(first_bad.load()) +
                                            " holds NaN or infinity; clean the input, or switch the check off");
    }
  }
}

}  // namespace

void check_finite(Problem const& p, std::int32_t num_threads) {
  bool const varlen = !p.cu_seqlens_q.empty();
  auto const plan = formats::plan_layout(p, recipe_options(Recipe::exact));
  std::vector<std::pair<std::int64_t, std::int64_t>> q_rows;
  std::vector<std::pair<std::int64_t, std::int64_t>> kv_rows;
  for (auto const& s : plan.sequences) {
    std::int64_t const q_begin = varlen ? s.row_begin_q : 0;
    std::int64_t const kv_begin = varlen ? s.row_begin_kv : 0;
    q_rows.emplace_back(q_begin, q_begin + s.seqlen_q);
    kv_rows.emplace_back(kv_begin, kv_begin + s.seqlen_kv);
  }
  check_tensor_finite(p.q, "q", q_rows, varlen, num_threads);
  check_tensor_finite(p.k, "k", kv_rows, varlen, num_threads);
  check_tensor_finite(p.v, "v", kv_rows, varlen, num_threads);
}

}  // namespace dispatch

namespace {

/// reason: why a CUDA device does not serve a checked problem.
template <typename Reason>
Support answer(Problem const& problem, Options const& options, Device device, Reason const& reason) noexcept {
  try {
    if (device != Device::cpu && device != Device::cuda)
      return {false, "device must be cpu or cuda; got " + std::to_string(static_cast<std::uint32_t>(device))};
    dispatch::check_problem(problem, options);
    std::string text = device == Device::cuda ? reason(formats::plan_layout(problem, options)) : "";
    bool const ok = text.empty();
    return {ok, std::move(text)};
  } catch (std::exception const& error) {
    return {false, error.what()};
  }
}

}  // namespace

Support supports(Problem const& problem, Options const& options, Device device) noexcept {
  return answer(problem, options, device,
                [&](formats::LayoutPlan const& plan) { return dispatch::cuda_unsupported_reason(plan.layout, options); });
}

Support supports_call(Problem const& problem, Options const& options, Device device) noexcept {
  return answer(problem, options, device,
                [&](formats::LayoutPlan const& plan) { return dispatch::cuda_call_unsupported_reason(problem, options, plan); });
}

}  // namespace vcattn
