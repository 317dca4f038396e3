// Order of the kernels, and what each is told.
//
//     K sums -> K mean -> Q means -> (amax of K and Q -> descales) -> [moment of Q -> feedback] -> K codes
//     V sums and amax -> V mean, descales -> V codes -> V mean, corrected
//     [moment of K -> feedback] -> Q codes, corrections of LSE -> score bounds
// Q means, which leave the amax of Q, too: where there are some. In parentheses: where a descale covers a whole head; in brackets: where
// rounding is shaped. Every kernel goes over all heads: head by
// head, so that the second sweep would find its data in the L2 cache, loses more at the ends of many short kernels than it gains.

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "core/expcast.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/runtime.hpp"
#include "device/launch.cuh"
#include "formats/option_text.hpp"
#include "formats/tensor_rows.hpp"
#include "prepare/cuda/moment.cuh"
#include "prepare/cuda/prepare.hpp"
#include "prepare/cuda/query_key.cuh"
#include "prepare/cuda/query_means.cuh"
#include "prepare/cuda/value.cuh"
#include "prepare/cuda/value_columns.cuh"

namespace vcattn::preparation::cuda {

namespace {

using formats::PreparedLayout;
using formats::SequenceExtent;

bool unit_scaling(Options const& o) { return o.qk == QkFormat::e4m3 && o.qk_scaling == QkScaling::unit; }

bool shapes_keys(Options const& o) { return o.qk_rounding != QkRounding::nearest; }
bool shapes_queries(Options const& o) { return o.qk_rounding == QkRounding::shaped; }

std::int64_t feedback_bytes(std::int64_t width) {
  return static_cast<std::int64_t>(width == 64 ? sizeof(FeedbackTables<64>) : sizeof(FeedbackTables<128>));
}

/// Hands out sections of the workspace; without memory it only counts.
class Workspace {
 public:
  explicit Workspace(std::byte* memory) : memory_(memory) {}

  template <typename T>
  T* take(std::int64_t count) {
    std::int64_t const offset = bytes_;
    constexpr auto kAlignment = static_cast<std::int64_t>(formats::kSectionAlignment);
    bytes_ += formats::ceil_div(count * static_cast<std::int64_t>(sizeof(T)), kAlignment) * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + offset);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

/// Lays the workspace out. Returns the bytes at its beginning that must be 0.
std::int64_t set_workspace(KernelParams& p, PreparedLayout const& l, Options const& options, Workspace& workspace) {
  std::int64_t const width = l.head_dim_padded;
  std::int64_t const heads_kv = l.batch * l.num_heads_kv;
  std::int64_t const heads_q = l.batch * l.num_heads;
  std::int64_t const tiles = l.num_heads_kv * l.tiles_kv;
  p.nonfinite = workspace.take<std::uint32_t>(heads_kv);
  p.k.amax = workspace.take<std::uint32_t>(heads_kv);
  p.k.norm = workspace.take<std::uint32_t>(heads_kv);
  p.q.amax = workspace.take<std::uint32_t>(heads_q);
  p.q.norm = workspace.take<std::uint32_t>(heads_q);
  p.q_mean_norm = workspace.take<std::uint32_t>(heads_q);
  p.k_mean = workspace.take<float>(heads_kv * width);
  if (shapes_keys(options)) p.q.moment = workspace.take<std::int32_t>(heads_q * width * width);
  if (shapes_queries(options)) p.k.moment = workspace.take<std::int32_t>(heads_kv * width * width);
  std::int64_t const zeroed = workspace.bytes();
  p.v_residual_amax = workspace.take<float>(heads_kv * width);
  p.v_mean_amax = workspace.take<float>(heads_kv * width);
  p.v_inverse = workspace.take<float>(heads_kv * width);
  p.k_tile_sums = workspace.take<float>(tiles * width);
  p.v_tile_sums = workspace.take<float>(tiles * width);
  p.v_block_sums = l.v_blocks_per_tile > 1 ? workspace.take<float>(tiles * l.v_blocks_per_tile * width) : p.v_tile_sums;
  p.v_tile_amax = workspace.take<float>(tiles * width);
  p.v_dropped = workspace.take<std::uint32_t>(tiles * kMaskWords);
  if (shapes_keys(options)) p.k.feedback = workspace.take<std::byte>(heads_kv * feedback_bytes(width));
  if (shapes_queries(options)) p.q.feedback = workspace.take<std::byte>(heads_kv * feedback_bytes(width));
  return zeroed;
}

/// Whether table entries of eight channels can be read at once, and the partners of these lie in one run, too.
bool has_rotary_runs(Rope const& rope) {
  auto const aligned = [](float const* table) { return reinterpret_cast<std::uintptr_t>(table) % sizeof(float4) == 0; };
  std::int64_t const pairs = rope.style == RopeStyle::interleaved ? kChannelsPerLoad : 2 * kChannelsPerLoad;
  return aligned(rope.cos) && aligned(rope.sin) && rope.first_channel % kChannelsPerLoad == 0 && rope.rotary_dim % pairs == 0;
}

/// rope: nullptr where the tensor is not rotated.
Tensor tensor_of(TensorView const& view, Rope const* rope) {
  Tensor t{};
  t.data = view.data;
  t.dtype = view.dtype;
  for (std::size_t d = 0; d < 4; ++d) t.stride[d] = view.shape[d] > 1 ? view.stride[d] : 0;
  t.head_dim = static_cast<std::int32_t>(view.head_dim());
  std::int64_t const row_bytes = t.stride[1] * dtype_bytes(view.dtype);
  if (row_bytes != static_cast<std::int32_t>(row_bytes) || !formats::has_aligned_runs(view, 16 / dtype_bytes(view.dtype))) return t;
  t.row_bytes = static_cast<std::int32_t>(row_bytes);
  t.direct = rope == nullptr ? 1 : 0;
  t.runs = rope == nullptr || has_rotary_runs(*rope) ? 1 : 0;
  return t;
}

int log2_of(std::int32_t power_of_two) { return std::countr_zero(static_cast<std::uint32_t>(power_of_two)); }

KernelParams params_of(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab) {
  auto const& l = slab.layout();
  KernelParams p{};
  p.sequences = slab.section<SequenceExtent>(l.sequences);
  p.batch = static_cast<std::int32_t>(l.batch);
  p.num_heads = static_cast<std::int32_t>(l.num_heads);
  p.num_heads_kv = static_cast<std::int32_t>(l.num_heads_kv);
  p.varlen = problem.cu_seqlens_q.empty() ? 0 : 1;
  if (problem.rope) {
    Rope const& rope = *problem.rope;
    p.rope = {rope.cos, rope.sin, static_cast<std::int32_t>(rope.rotary_dim), static_cast<std::int32_t>(rope.first_channel),
              rope.style == RopeStyle::interleaved ? 1 : 0};
  }
  bool const per_block = l.scales_per_block != 0;
  Rope const* const rope = problem.rope ? &*problem.rope : nullptr;
  p.q.tensor = tensor_of(problem.q, rope);
  p.q.codes = slab.section<std::byte>(l.q_codes);
  p.q.scale_factors = slab.section<std::uint8_t>(l.q_scale_factors);
  p.q.descale = slab.section<float>(l.q_descale);
  p.q.block_log2 = per_block ? log2_of(options.q_block) : -1;
  p.k.tensor = tensor_of(problem.k, rope);
  p.k.codes = slab.section<std::byte>(l.k_codes);
  p.k.scale_factors = slab.section<std::uint8_t>(l.k_scale_factors);
  p.k.descale = slab.section<float>(l.k_descale);
  p.k.block_log2 = per_block ? log2_of(options.k_block) : -1;
  auto const format = formats::code_format(options.qk);
  p.q.limit = unit_scaling(options) ? static_cast<float>(formats::unit_query_code_max(l.head_dim_padded)) : formats::code_max(format);
  p.k.limit = unit_scaling(options) ? static_cast<float>(formats::kUnitKeyCodeMax) : formats::code_max(format);
  p.k.permutation = slab.section<std::int32_t>(l.permutation);
  p.v = tensor_of(problem.v, nullptr);

  p.k_mean_on = options.k_mean ? 1 : 0;
  p.hadamard = options.hadamard ? 1 : 0;
  p.unit = unit_scaling(options) ? 1 : 0;
  p.v_mean_on = options.v_mean ? 1 : 0;
  p.emc = options.v_mean && options.emc ? 1 : 0;
  p.v_per_channel = options.v_per_channel ? 1 : 0;
  p.v_blocks = std::max(l.v_blocks_per_tile, 1);
  p.v_code_max = formats::code_max(formats::code_format(options.v));
  p.softmax_scale = l.softmax_scale;
  p.codes_per_product = l.softmax_scale * core::kCodesPerNat;
  bool const f16 = unit_scaling(options) && formats::allows_f16_scores(options.exp_form);
  p.f16_bound = f16 ? formats::fp16_score_bound(options.scores) : -1.0f;

  p.score_multiplier = slab.section<float>(l.score_multiplier);
  p.score_bound = slab.section<float>(l.score_bound);
  p.score_variant = slab.section<formats::ScoreVariant>(l.score_variant);
  p.lse_correction = slab.section<float>(l.lse_correction);
  p.q_mean = slab.section<float>(l.q_mean);
  p.k_high = slab.section<std::uint16_t>(l.k_high);
  p.v_codes = slab.section<std::byte>(l.v_codes);
  p.v_scale_factors = slab.section<std::uint8_t>(l.v_scale_factors);
  p.v_descale = slab.section<float>(l.v_descale);
  p.v_mean = slab.section<std::uint16_t>(l.v_mean);
  p.v_global_mean = slab.section<float>(l.v_global_mean);
  return p;
}

// --- Choosing instances ---

template <typename Body>
void with_dtype(DType dtype, Body const& body) {
  switch (dtype) {
    case DType::f32:
      return body(std::integral_constant<DType, DType::f32>{});
    case DType::f16:
      return body(std::integral_constant<DType, DType::f16>{});
    case DType::bf16:
      return body(std::integral_constant<DType, DType::bf16>{});
  }
}

template <typename Body>
void with_width(std::int64_t width, Body const& body) {
  if (width == 64) return body(std::integral_constant<int, 64>{});
  body(std::integral_constant<int, 128>{});
}

template <typename Body>
void with_format(QkFormat format, Body const& body) {
  if (format == QkFormat::int8) return body(std::integral_constant<CodeFormat, CodeFormat::int8>{});
  if (format == QkFormat::nvfp4) return body(std::integral_constant<CodeFormat, CodeFormat::nvfp4>{});
  body(std::integral_constant<CodeFormat, CodeFormat::e4m3>{});
}
template <typename Body>
void with_format(VFormat format, Body const& body) {
  if (format == VFormat::nvfp4) return body(std::integral_constant<CodeFormat, CodeFormat::nvfp4>{});
  body(std::integral_constant<CodeFormat, CodeFormat::e4m3>{});
}

template <typename Body>
void with_shaped(bool shaped, Body const& body) {
  if (shaped) return body(std::bool_constant<true>{});
  body(std::bool_constant<false>{});
}

/// Launches the kernels of one preparation, each over all heads.
class Launcher {
 public:
  Launcher(KernelParams const& params, Options const& options, PreparedLayout const& layout, cudaStream_t stream)
      : p_(params), options_(options), l_(layout), multiprocessors_(device::cuda::multiprocessors()), stream_(stream) {}

  void key_means() {
    with_instance(p_.k.tensor, [&](auto dtype, auto width) {
      over_tiles<typename ColumnWalk<dtype, width, false>::Smem>(key_sums_kernel<dtype, width>, width, Role::key);
    });
    per_channel_group(key_means_kernel);
  }
  void query_means() {
    with_instance(p_.q.tensor, [&](auto dtype, auto width) {
      over_tiles<QueryMeansSmem<dtype, width>>(query_means_kernel<dtype, width>, tile_threads(kAmaxThreads), Role::query);
    });
  }
  template <Role kRole>
  void amax() {
    with_instance(operand<kRole>(p_).tensor, [&](auto dtype, auto width) {
      over_tiles<AmaxSmem<dtype, width>>(amax_kernel<dtype, width, kRole>, tile_threads(kAmaxThreads), kRole);
    });
  }
  void head_descales() {
    per_head(head_descales_kernel, l_.batch * l_.num_heads_kv, formats::code_format(options_.qk),
             formats::unit_query_code_max(l_.head_dim_padded));
  }
  /// From the moments of kOf to the feedback of the other operand.
  template <Role kOf>
  void feedback() {
    constexpr bool kQuery = kOf == Role::query;
    OperandParams const& of = operand<kOf>(p_);
    std::int64_t const heads = l_.batch * (kQuery ? l_.num_heads : l_.num_heads_kv);
    std::int64_t const tiles = kQuery ? l_.tiles_q : l_.tiles_kv;
    if (heads == 0) return;
    with_instance(of.tensor, [&](auto dtype, auto width) {
      // Enough CTAs for the device, no more than tiles that count.
      std::int64_t const wanted = formats::ceil_div(4 * multiprocessors_, heads);
      auto const ctas = static_cast<unsigned>(std::clamp<std::int64_t>(std::min(wanted, tiles), 1, kMomentTiles));
      launch_large<MomentSmem<dtype, width>>(moment_kernel<dtype, width, kOf>, dim3(ctas, static_cast<unsigned>(heads)), tile_threads(1),
                                             p_);
    });
    with_width(l_.head_dim_padded, [&](auto width) {
      auto const heads_kv = static_cast<unsigned>(l_.batch * l_.num_heads_kv);
      launch_large<FeedbackSmem<width>>(feedback_kernel<width>, dim3(heads_kv), kFeedbackThreads,
                                        static_cast<std::int32_t const*>(of.moment), static_cast<std::uint32_t const*>(of.amax),
                                        static_cast<int>(kQuery ? l_.num_heads / l_.num_heads_kv : 1),
                                        kQuery ? p_.k.feedback : p_.q.feedback);
    });
  }
  template <Role kRole>
  void codes() {
    with_instance(operand<kRole>(p_).tensor, [&](auto dtype, auto width) {
      with_format(options_.qk, [&](auto format) {
        with_shaped(kRole == Role::key ? shapes_keys(options_) : shapes_queries(options_), [&](auto shaped) {
          over_tiles<CodesSmem<dtype, width, format, shaped>>(codes_kernel<dtype, width, kRole, format, shaped>,
                                                              tile_threads(threads_per_row(shaped)), kRole);
        });
      });
    });
  }
  void values() {
    bool const whole_tiles = p_.v_blocks == 1;
    with_instance(p_.v, [&](auto dtype, auto width) {
      using Smem = typename ColumnWalk<dtype, width, true>::Smem;
      over_tiles<Smem>(whole_tiles ? value_stats_kernel<dtype, width> : value_block_stats_kernel<dtype, width>, width, Role::key);
    });
    per_channel_group(value_means_kernel);
    launch(value_descales_kernel, dim3(static_cast<unsigned>(l_.batch * l_.num_heads_kv)), static_cast<unsigned>(l_.head_dim_padded), 0,
           p_);
    with_instance(p_.v, [&](auto dtype, auto width) {
      if (whole_tiles && options_.v == VFormat::e4m3) {
        return over_tiles<ValueSmem<dtype, width>>(value_codes_kernel<dtype, width>, width, Role::key);
      }
      using Smem = typename ColumnWalk<dtype, width, true>::Smem;
      with_format(options_.v, [&](auto format) { over_tiles<Smem>(value_columns_kernel<dtype, width, format>, width, Role::key); });
    });
    if (p_.emc != 0) per_channel_group(value_lost_kernel);
  }
  void score_bounds() { per_head(score_bounds_kernel, l_.batch * l_.num_heads); }

 private:
  template <typename Kernel, typename... Arguments>
  void launch(Kernel kernel, dim3 grid, unsigned threads, std::size_t smem_bytes, Arguments const&... arguments) {
    device::cuda::check(device::launch(kernel, grid, dim3(threads), smem_bytes, stream_, arguments...), "launch of a preparation kernel");
  }
  template <typename Smem, typename Kernel, typename... Arguments>
  void launch_large(Kernel kernel, dim3 grid, unsigned threads, Arguments const&... arguments) {
    device::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem)), "cudaFuncSetAttribute");
    launch(kernel, grid, threads, sizeof(Smem), arguments...);
  }
  /// A kernel that walks over the tiles of Q, or of K and V: as many CTAs as the device holds at a time.
  template <typename Smem, typename Kernel>
  void over_tiles(Kernel kernel, int threads, Role role) {
    p_.tiles = role == Role::query ? l_.num_heads * l_.tiles_q : l_.num_heads_kv * l_.tiles_kv;
    if (p_.tiles == 0) return;
    using device::cuda::check;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Smem)), "cudaFuncSetAttribute");
    int per_multiprocessor = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, threads, sizeof(Smem)), "occupancy of a kernel");
    std::int64_t const ctas = std::min<std::int64_t>(p_.tiles, std::int64_t{multiprocessors_} * per_multiprocessor);
    launch(kernel, dim3(static_cast<unsigned>(ctas)), static_cast<unsigned>(threads), sizeof(Smem), p_);
  }
  /// A kernel that combines the tiles of a head, 32 channels a CTA.
  template <typename Kernel>
  void per_channel_group(Kernel kernel) {
    dim3 const grid(static_cast<unsigned>(l_.batch * l_.num_heads_kv), static_cast<unsigned>(l_.head_dim_padded / 32));
    launch(kernel, grid, kTileSumThreads, 0, p_, static_cast<int>(l_.head_dim_padded));
  }
  template <typename Kernel, typename... Arguments>
  void per_head(Kernel kernel, std::int64_t heads, Arguments const&... arguments) {
    constexpr unsigned kThreads = 64;
    launch(kernel, dim3(static_cast<unsigned>(formats::ceil_div(heads, kThreads))), kThreads, 0, p_, heads, arguments...);
  }
  /// body(type, width): the type in which a tensor is staged.
  template <typename Body>
  void with_instance(Tensor const& tensor, Body const& body) {
    with_dtype(tensor.direct != 0 ? tensor.dtype : DType::f32,
               [&](auto type) { with_width(l_.head_dim_padded, [&](auto width) { body(type, width); }); });
  }

  KernelParams p_;
  Options const& options_;
  PreparedLayout const& l_;
  int multiprocessors_;
  cudaStream_t stream_;
};

}  // namespace

std::string unsupported_reason(PreparedLayout const& l, Options const& o) {
  auto const need = [](std::string const& what, std::string const& got) {
    return "preparation on a CUDA device needs " + what + "; got " + got + "; change it, or prepare on the CPU";
  };
  auto const name = [&](char const* key) { return formats::option_text(o, key); };
  if (l.head_dim_padded != 64 && l.head_dim_padded != 128) return need("head_dim of 40 to 128", std::to_string(l.head_dim));
  if (formats::code_max(formats::code_format(o.qk)) == 0.0f) return need("qk=e4m3, int8 or nvfp4", name("qk"));
  if (o.q_mean && o.qk != QkFormat::nvfp4) return need("q_mean=off where qk is not nvfp4", name("q_mean"));
  if (formats::code_max(formats::code_format(o.v)) == 0.0f) return need("v=e4m3 or v=nvfp4", name("v"));
  constexpr std::int64_t kMaxHeads = 65535;  // of a grid's second dimension
  if (shapes_keys(o) && l.batch * l.num_heads > kMaxHeads) {
    return need("at most 65535 pairs of sequence and head where rounding is shaped", std::to_string(l.batch * l.num_heads));
  }
  std::int64_t const tiles = std::max(l.num_heads * l.tiles_q, l.num_heads_kv * l.tiles_kv);
  if (tiles > std::numeric_limits<std::int32_t>::max()) return need("fewer than 2^31 tiles over all heads", std::to_string(tiles));
  return "";
}

std::size_t workspace_bytes(PreparedLayout const& layout, Options const& options) {
  KernelParams p{};
  Workspace workspace(nullptr);
  set_workspace(p, layout, options, workspace);
  return static_cast<std::size_t>(workspace.bytes());
}

void prepare(Problem const& problem, Options const& options, formats::SlabView<std::byte> const& slab, std::byte* workspace, void* stream) {
  auto const& l = slab.layout();
  if (std::string const reason = unsupported_reason(l, options); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  KernelParams p = params_of(problem, options, slab);
  Workspace sections(workspace);
  auto const zeroed = static_cast<std::size_t>(set_workspace(p, l, options, sections));
  auto* const cuda_stream = static_cast<cudaStream_t>(stream);
  device::cuda::check(cudaMemsetAsync(workspace, 0, zeroed, cuda_stream), "cudaMemsetAsync");

  Launcher launcher(p, options, l, cuda_stream);
  if (options.k_mean) launcher.key_means();
  if (options.q_mean) launcher.query_means();
  bool const per_head = l.scales_per_block == 0;
  if (per_head || shapes_queries(options)) launcher.amax<Role::key>();
  if ((per_head || shapes_keys(options)) && !options.q_mean) launcher.amax<Role::query>();
  if (per_head) launcher.head_descales();
  if (shapes_keys(options)) launcher.feedback<Role::query>();
  launcher.codes<Role::key>();
  launcher.values();
  if (shapes_queries(options)) launcher.feedback<Role::key>();
  launcher.codes<Role::query>();
  launcher.score_bounds();
}

void load_kernels() {
  auto const load = [](auto kernel) {
    cudaFuncAttributes attributes{};
    device::cuda::check(cudaFuncGetAttributes(&attributes, kernel), "loading of a kernel");
  };
  for (DType const any_dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (std::int64_t const any_width : {64, 128}) {
      with_dtype(any_dtype, [&](auto dtype) {
        with_width(any_width, [&](auto width) {
          load(key_sums_kernel<dtype, width>);
          load(amax_kernel<dtype, width, Role::key>);
          load(amax_kernel<dtype, width, Role::query>);
          load(moment_kernel<dtype, width, Role::query>);
          load(moment_kernel<dtype, width, Role::key>);
          load(value_stats_kernel<dtype, width>);
          load(value_codes_kernel<dtype, width>);
          load(value_block_stats_kernel<dtype, width>);
          load(query_means_kernel<dtype, width>);
          for (VFormat const any_format : {VFormat::e4m3, VFormat::nvfp4}) {
            with_format(any_format, [&](auto format) { load(value_columns_kernel<dtype, width, format>); });
          }
          for (QkFormat const any_format : {QkFormat::int8, QkFormat::e4m3, QkFormat::nvfp4}) {
            with_format(any_format, [&](auto format) {
              for (bool const any_shaped : {false, true}) {
                with_shaped(any_shaped, [&](auto shaped) {
                  load(codes_kernel<dtype, width, Role::key, format, shaped>);
                  load(codes_kernel<dtype, width, Role::query, format, shaped>);
                });
              }
            });
          }
        });
      });
    }
  }
  load(feedback_kernel<64>);
  load(feedback_kernel<128>);
  load(key_means_kernel);
  load(value_means_kernel);
  load(value_descales_kernel);
  load(value_lost_kernel);
  load(head_descales_kernel);
  load(score_bounds_kernel);
}

}  // namespace vcattn::preparation::cuda
