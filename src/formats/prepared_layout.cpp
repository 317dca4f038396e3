#include "formats/prepared_layout.hpp"

#include <bit>
#include <cmath>

#include "core/nvfp4.hpp"

namespace vcattn::formats {

std::int64_t padded_head_dim(std::int64_t head_dim) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(head_dim < 32 ? 32 : head_dim)));
}

float softmax_scale_of(Problem const& problem) {
  return static_cast<float>(problem.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.q.head_dim()))));
}

GroupOrder resolve_order(Options const& options, bool causal) {
  if (options.order != GroupOrder::automatic) return options.order;
  if (causal || !options.v_mean) return GroupOrder::sequence;
  return options.recipe == Recipe::vc8_paper ? GroupOrder::label : GroupOrder::chain_sorted;
}

namespace {

std::int32_t qk_bits(QkFormat format) {
  switch (format) {
    case QkFormat::f32:
      return 32;
    case QkFormat::bf16:
      return 16;
    case QkFormat::e4m3:
    case QkFormat::int8:
      return 8;
    case QkFormat::nvfp4:
      return 4;
  }
  return 0;
}

std::int32_t v_bits(VFormat format) {
  switch (format) {
    case VFormat::f32:
      return 32;
    case VFormat::bf16:
      return 16;
    case VFormat::e4m3:
      return 8;
    case VFormat::nvfp4:
      return 4;
  }
  return 0;
}

class SectionAllocator {
 public:
  Section take(std::int64_t bytes) {
    Section const section{end_, static_cast<std::uint64_t>(bytes)};
    end_ += aligned_size(section.bytes);
    return section;
  }
  std::uint64_t end() const { return end_; }

 private:
  std::uint64_t end_ = 0;
};

std::vector<SequenceExtent> sequence_extents(Problem const& problem) {
  bool const varlen = !problem.cu_seqlens_q.empty();
  auto const count = varlen ? problem.cu_seqlens_q.size() - 1 : static_cast<std::size_t>(problem.q.batch());
  std::vector<SequenceExtent> extents(count);
  SequenceExtent next;
  for (std::size_t b = 0; b < count; ++b) {
    SequenceExtent& s = extents[b];
    s = next;
    s.seqlen_q = varlen ? problem.cu_seqlens_q[b + 1] - problem.cu_seqlens_q[b] : problem.q.seqlen();
    s.rows_kv = varlen ? problem.cu_seqlens_k[b + 1] - problem.cu_seqlens_k[b] : problem.k.seqlen();
    s.seqlen_kv = problem.seqused_k.empty() ? s.rows_kv : problem.seqused_k[b];
    s.tiles_q = ceil_div(s.seqlen_q, kTileRows);
    s.tiles_kv = ceil_div(s.seqlen_kv, kTileRows);
    next.row_begin_q = s.row_begin_q + s.seqlen_q;
    next.row_begin_kv = s.row_begin_kv + s.rows_kv;
    next.tile_begin_q = s.tile_begin_q + s.tiles_q;
    next.tile_begin_kv = s.tile_begin_kv + s.tiles_kv;
  }
  return extents;
}

}  // namespace

void check_memory(std::span<std::byte const> given, std::size_t bytes, char const* what, char const* ask) {
  auto const address = reinterpret_cast<std::uintptr_t>(given.data());
  if (given.size() >= bytes && address % kSectionAlignment == 0) return;
  throw Error(ErrorCode::invalid_argument, std::string(what) + " must be 256-byte aligned and at least " + std::to_string(bytes) +
                                               " bytes; got " + std::to_string(given.size()) + " bytes at address " +
                                               std::to_string(address) + "; ask " + ask);
}

LayoutPlan plan_layout(Problem const& problem, Options const& options) {
  LayoutPlan plan;
  plan.sequences = sequence_extents(problem);
  PreparedLayout& l = plan.layout;
  l.batch = static_cast<std::int64_t>(plan.sequences.size());
  l.num_heads = problem.q.num_heads();
  l.num_heads_kv = problem.k.num_heads();
  l.head_dim = problem.q.head_dim();
  l.head_dim_padded = padded_head_dim(l.head_dim);
  for (SequenceExtent const& s : plan.sequences) {
    l.tiles_q += s.tiles_q;
    l.tiles_kv += s.tiles_kv;
    l.rows_q += s.seqlen_q;
    l.rows_kv += s.rows_kv;
  }
  l.qk_bits = qk_bits(options.qk);
  l.v_bits = v_bits(options.v);
  bool const coded = options.qk == QkFormat::e4m3 || options.qk == QkFormat::int8;
  l.scales_per_block = coded && options.qk_scaling == QkScaling::block ? 1 : 0;
  if (l.scales_per_block != 0) {
    l.q_blocks_per_tile = static_cast<std::int32_t>(kTileRows) / options.q_block;
    l.k_blocks_per_tile = static_cast<std::int32_t>(kTileRows) / options.k_block;
  }
  l.v_blocks_per_tile = options.v_mean ? static_cast<std::int32_t>(kTileRows) / options.v_block : 0;
  l.softmax_scale = softmax_scale_of(problem);
  l.causal = problem.causal ? 1 : 0;

  std::int64_t const dp = l.head_dim_padded;
  std::int64_t const heads_q = l.batch * l.num_heads;
  std::int64_t const heads_kv = l.batch * l.num_heads_kv;
  std::int64_t const tiles_q = l.num_heads * l.tiles_q;
  std::int64_t const tiles_kv = l.num_heads_kv * l.tiles_kv;
  std::int64_t const f32_bytes = 4;
  std::int64_t const groups = dp / core::kNvfp4Group;
  bool const qk_nvfp4 = options.qk == QkFormat::nvfp4;
  bool const v_nvfp4 = options.v == VFormat::nvfp4;

  SectionAllocator slab;
  l.sequences = slab.take(l.batch * static_cast<std::int64_t>(sizeof(SequenceExtent)));
  l.q_codes = slab.take(tiles_q * kTileRows * dp * l.qk_bits / 8);
  l.q_scale_factors = slab.take(qk_nvfp4 ? tiles_q * kTileRows * groups : 0);
  l.q_descale = slab.take(f32_bytes * (l.scales_per_block != 0 ? tiles_q * l.q_blocks_per_tile : heads_q));
  l.q_mean = slab.take(options.q_mean ? f32_bytes * tiles_q * dp : 0);
  l.k_codes = slab.take(tiles_kv * kTileRows * dp * l.qk_bits / 8);
  l.k_scale_factors = slab.take(qk_nvfp4 ? tiles_kv * kTileRows * groups : 0);
  l.k_descale = slab.take(f32_bytes * (l.scales_per_block != 0 ? tiles_kv * l.k_blocks_per_tile : heads_kv));
  l.k_high = slab.take(options.q_mean ? 2 * tiles_kv * kTileRows * dp : 0);
  l.score_multiplier = slab.take(f32_bytes * heads_q);
  l.score_bound = slab.take(f32_bytes * heads_q);
  l.score_variant = slab.take(heads_q);
  l.v_codes = slab.take(tiles_kv * dp * kTileRows * l.v_bits / 8);
  l.v_scale_factors = slab.take(v_nvfp4 ? tiles_kv * dp * (kTileRows / core::kNvfp4Group) : 0);
  l.v_descale = slab.take(f32_bytes * heads_kv * dp);
  l.v_mean = slab.take(2 * tiles_kv * l.v_blocks_per_tile * dp);
  l.v_global_mean = slab.take(options.v_mean ? f32_bytes * heads_kv * dp : 0);
  l.lse_correction = slab.take(f32_bytes * l.num_heads * l.rows_q);
  l.permutation = slab.take(f32_bytes * l.num_heads_kv * l.rows_kv);
  l.total_bytes = slab.end();
  return plan;
}

}  // namespace vcattn::formats
