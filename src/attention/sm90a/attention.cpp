#include "attention/sm90a/attention.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "attention/sm90a/instances.hpp"
#include "core/online_softmax.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/runtime.hpp"
#include "device/cuda/tensor_map.hpp"
#include "formats/option_text.hpp"
#include "formats/tensor_rows.hpp"

namespace vcattn::attention_sm90a {

namespace {

using device::cuda::BoxSwizzle;
using device::cuda::make_tensor_map;
using formats::kTileRows;
using Slab = formats::SlabView<std::byte const>;
using LaunchFunction = cudaError_t (*)(KernelParams const&, unsigned, cudaStream_t);

struct Instance {
  Scores scores;
  Probabilities probabilities;
  int head_dim;
  int tile_rows;  // of queries
  std::size_t part_bytes;
  LaunchFunction launch;
  cudaError_t (*load)();
};

/// Every combination; sources.cmake makes a translation unit of each.
constexpr Scores kScoreFormats[] = {Scores::f16, Scores::f32, Scores::s32};
constexpr Probabilities kProbabilityForms[] = {Probabilities::lines, Probabilities::exp};
constexpr int kHeadDims[] = {64, 128};

template <std::size_t kIndex>
constexpr Instance instance() {
  using Config = TileConfig<kScoreFormats[kIndex / 4], kProbabilityForms[kIndex / 2 % 2], kHeadDims[kIndex % 2]>;
  return {Config::kScores,    Config::kProbabilities,  Config::kHeadDim,     Config::kTileQ,
          Config::kPartBytes, launch_instance<Config>, load_instance<Config>};
}

template <std::size_t... kIndices>
constexpr auto all_instances(std::index_sequence<kIndices...>) {
  return std::array{instance<kIndices>()...};
}
constexpr auto kInstances =
    all_instances(std::make_index_sequence<std::size(kScoreFormats) * std::size(kProbabilityForms) * std::size(kHeadDims)>());

Instance const& find_instance(Scores scores, Probabilities probabilities, std::int64_t head_dim) {
  auto const found = std::find_if(kInstances.begin(), kInstances.end(), [&](Instance const& i) {
    return i.scores == scores && i.probabilities == probabilities && i.head_dim == head_dim;
  });
  if (found == kInstances.end()) throw Error(ErrorCode::internal, "no sm_90a instance for head_dim " + std::to_string(head_dim));
  return *found;
}

bool unit_scaling(Options const& options) { return options.qk == QkFormat::e4m3 && options.qk_scaling == QkScaling::unit; }

struct Launch {
  Scores scores;
  int variant;  // < 0: all heads
};

/// One kernel for all heads, or two: the score bound of each head, on the device, says which of them serves it; the other one passes over
/// the head.
std::vector<Launch> launches_of(Options const& options) {
  if (options.qk == QkFormat::int8) return {{Scores::s32, -1}};
  if (!unit_scaling(options) || options.scores == ScoreFormat::f32 || !formats::allows_f16_scores(options.exp_form))
    return {{Scores::f32, -1}};
  return {{Scores::f16, static_cast<int>(formats::ScoreVariant::f16)}, {Scores::f32, static_cast<int>(formats::ScoreVariant::f32)}};
}

Probabilities probabilities_of(Options const& options) {
  return options.exp_form == ExpForm::exp ? Probabilities::exp : Probabilities::lines;
}

/// Key tiles between two promotions of the FP8 accumulators. Residuals from block means hardly grow; whole values do.
std::int32_t window_tiles(Options const& options) { return options.v_mean ? kWindowTiles : 1; }

void set_softmax(KernelParams& p, Options const& options) {
  bool const two_line = options.exp_form == ExpForm::two_line;
  p.head_room = core::has_head_room(options.exp_form) ? 1 : 0;
  for (int f = 0; f <= core::kTopFractions; ++f) {
    p.aligned_top[f] = static_cast<std::int8_t>(options.top_code - core::top_offset(options.top_code, f));
  }
  p.top_position = options.exp_form == ExpForm::exp     ? core::log_position(options.top_code)  // [EQ-EXP]
                   : options.exp_form == ExpForm::paper ? core::kPaperOffset                    // [EQ-EXPCAST-PAPER]
                                                        : static_cast<float>(options.top_code);
  constexpr std::uint32_t kBothHalves = 0x10001u;
  p.slope2 = two_line ? core::fp16_encode(core::kTwoLineSlope) * kBothHalves : 0u;
  p.offset2 = two_line ? static_cast<std::uint32_t>(core::kTwoLineOffset) * kBothHalves : 0u;  // FP16 bits of k * 2^-24 are k
  p.log_bias = core::log_bias(options.exp_form);
  p.window = window_tiles(options);
}

void set_output(KernelParams& p, MutableTensorView const& o, float* lse, bool varlen) {
  p.o = o.data;
  for (std::size_t d = 0; d < 4; ++d) p.o_stride[d] = o.shape[d] > 1 ? o.stride[d] : 0;
  p.o_pairs = formats::has_aligned_runs(o, 2) ? 1 : 0;
  p.o_dtype = o.dtype;
  p.varlen = varlen ? 1 : 0;
  p.lse = lse;
}

void set_problem(KernelParams& p, Slab const& slab, Options const& options) {
  auto const& l = slab.layout();
  p.sequences = slab.section<formats::SequenceExtent>(l.sequences);
  bool const unit = unit_scaling(options);
  p.q_descale = unit ? nullptr : slab.section<float>(l.q_descale);
  p.k_descale = unit ? nullptr : slab.section<float>(l.k_descale);
  p.score_multiplier = slab.section<float>(l.score_multiplier);
  p.score_variant = slab.section<std::uint8_t>(l.score_variant);
  p.v_descale = slab.section<float>(l.v_descale);
  p.v_global_mean = options.v_mean ? slab.section<float>(l.v_global_mean) : nullptr;
  p.lse_correction = slab.section<float>(l.lse_correction);
  p.batch = static_cast<std::int32_t>(l.batch);
  p.num_heads = static_cast<std::int32_t>(l.num_heads);
  p.num_heads_kv = static_cast<std::int32_t>(l.num_heads_kv);
  p.head_dim = static_cast<std::int32_t>(l.head_dim);
  p.q_blocks_per_tile = l.scales_per_block != 0 ? l.q_blocks_per_tile : 0;
  p.rows_q = l.rows_q;
  p.causal = l.causal;
}

/// Whether the last wave of CTAs can be worth a split: all query tiles with the same keys, and many of them. The device decides.
bool may_split(formats::PreparedLayout const& l) { return l.causal == 0 && l.tiles_kv / l.batch >= kLeastSplitGain; }

/// Most parts that query tiles of `tile_rows` rows can be cut into: one fewer than CTAs and split tiles together.
std::int64_t most_parts(formats::PreparedLayout const& l, int tile_rows) {
  std::int64_t const ctas = device::cuda::multiprocessors();
  if (l.batch != 1) return 2 * ctas - 1;  // what the sequences have is on the device
  std::int64_t most = 0;
  for (std::int64_t heads = 1; heads <= l.num_heads; ++heads) {  // as many as a variant may serve
    std::int64_t const split = heads * formats::ceil_div(l.rows_q, tile_rows) % ctas;
    if (l.tiles_kv - split * l.tiles_kv / ctas >= kLeastSplitGain) most = std::max(most, split);
  }
  return most == 0 ? 0 : ctas + most - 1;
}

void set_tensor_maps(KernelParams& p, Slab const& slab, Options const& options) {
  auto const& l = slab.layout();
  int const width = static_cast<int>(l.head_dim_padded);
  auto const row_swizzle = width == 128 ? BoxSwizzle::bytes_128 : BoxSwizzle::bytes_64;
  // A map needs at least one row; a problem without key tiles loads none of them.
  auto const tiles_q = std::max<std::int64_t>(l.num_heads * l.tiles_q, 1);
  auto const tiles_kv = std::max<std::int64_t>(l.num_heads_kv * l.tiles_kv, 1);
  auto const* const any = slab.section<std::byte>(l.sequences);
  auto const base = [&](formats::Section const& s) { return s.bytes == 0 ? any : slab.section<std::byte>(s); };
  p.q_map = make_tensor_map({base(l.q_codes), 1, tiles_q * kTileRows, width, kWarpgroupRows, width, row_swizzle});
  p.k_map = make_tensor_map({base(l.k_codes), 1, tiles_kv * kTileRows, width, kTileKv, width, row_swizzle});
  p.v_map = make_tensor_map({base(l.v_codes), 1, tiles_kv * width, kTileKv, width, kTileKv, BoxSwizzle::bytes_128});
  if (options.v_mean) p.mean_map = make_tensor_map({base(l.v_mean), 2, tiles_kv, width, kWindowTiles, 64, BoxSwizzle::bytes_128});
}

}  // namespace

std::string unsupported_reason(formats::PreparedLayout const& l, Options const& o) {
  auto const need = [](std::string const& what, std::string const& got) {
    return "the sm_90a kernels need " + what + "; got " + got + "; change it, or use device cpu";
  };
  auto const name = [&](char const* key) { return formats::option_text(o, key); };
  if (l.head_dim_padded != 64 && l.head_dim_padded != 128) {
    return need("head_dim of 40 to 128", std::to_string(l.head_dim));
  }
  if (o.qk != QkFormat::e4m3 && o.qk != QkFormat::int8) return need("qk=e4m3 or qk=int8", name("qk"));
  if (o.v != VFormat::e4m3) return need("v=e4m3", name("v"));
  if (o.prob != ProbFormat::e4m3) return need("prob=e4m3", name("prob"));
  if (o.q_mean) return need("q_mean=off", name("q_mean"));
  if (o.exp_form == ExpForm::affine) return need("expcast=two_line, offset126 or paper, or exp", name("expcast"));
  if (o.qk_scaling == QkScaling::block && o.k_block != kTileKv) return need("k_block=128", name("k_block"));
  if (o.v_mean && o.v_block != kTileKv) return need("block=128", name("block"));
  if (!(l.softmax_scale >= 0.0f)) return need("softmax_scale >= 0", std::to_string(l.softmax_scale));
  // The copy engine and the work list count in int32.
  std::int64_t const rows = std::max({l.num_heads * l.tiles_q, l.num_heads_kv * l.tiles_kv, l.batch * l.num_heads}) * kTileRows;
  if (rows > std::numeric_limits<std::int32_t>::max() - 1024)
    return need("fewer than 2^31 padded rows over all heads", std::to_string(rows));
  return "";
}

std::size_t workspace_bytes(formats::PreparedLayout const& l, Options const& options) {
  if (!may_split(l)) return 0;
  std::size_t bytes = 0;
  for (Launch const& launch : launches_of(options)) {
    Instance const& instance = find_instance(launch.scores, probabilities_of(options), l.head_dim_padded);
    bytes = std::max(bytes, static_cast<std::size_t>(most_parts(l, instance.tile_rows)) * instance.part_bytes);
  }
  return bytes;
}

void load_kernels() {
  for (Instance const& instance : kInstances) device::cuda::check(instance.load(), "loading of a kernel");
}

void attention(Slab const& slab, Options const& options, bool varlen, MutableTensorView const& o, float* lse, std::byte* workspace,
               void* stream) {
  auto const& l = slab.layout();
  if (l.rows_q == 0) return;
  KernelParams p{};
  set_tensor_maps(p, slab, options);
  set_problem(p, slab, options);
  set_softmax(p, options);
  set_output(p, o, lse, varlen);

  auto const ctas = static_cast<unsigned>(device::cuda::multiprocessors());
  auto const launch = [&](Launch const& one) {
    Instance const& instance = find_instance(one.scores, probabilities_of(options), l.head_dim_padded);
    p.variant = one.variant;
    p.parts = may_split(l) ? workspace : nullptr;  // one launch after the other
    device::cuda::check(instance.launch(p, ctas, static_cast<cudaStream_t>(stream)), "launch of the attention kernel");
  };
  for (Launch const& one : launches_of(options)) launch(one);
}

}  // namespace vcattn::attention_sm90a
