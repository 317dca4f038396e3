#include "grouping/cuda/group_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "device/cuda/check.hpp"
#include "formats/tensor_rows.hpp"
#include "grouping/cuda/stages.hpp"

namespace vcattn::grouping::cuda {

namespace {

using formats::ceil_div;

ClusterRule rule_of(Options const& options, GroupOrder order) {
  ClusterRule const rule = cluster_rule(options, order);
  return options.clusters > 0 ? rule : rule.at_most(kMaxDeviceClusters);
}

std::int64_t longest(DeviceValues const& values, std::int64_t formats::SequenceExtent::*length) {
  std::int64_t most = 0;
  for (auto const& sequence : values.sequences) most = std::max(most, sequence.*length);
  return most;
}

std::int64_t total_rows(DeviceValues const& values) {
  std::int64_t rows = 0;
  for (auto const& sequence : values.sequences) rows += sequence.rows_kv;
  return rows;
}

Source source_of(TensorView const& v) {
  constexpr std::int64_t kRun = 8;  // channels of one load
  if (v.dtype == DType::f32 || v.head_dim() % kRun != 0 || !formats::has_aligned_runs(v, kRun)) return Source::any;
  return v.dtype == DType::bf16 ? Source::bf16 : Source::f16;
}

Params params_of(DeviceValues const& values, Options const& options, bool warm) {
  GroupOrder const order = formats::resolve_order(options, /*causal=*/false);
  Params p;
  p.v = values.v.data;
  p.dtype = values.v.dtype;
  for (std::size_t d = 0; d < 4; ++d) p.stride[d] = values.v.shape[d] > 1 ? values.v.stride[d] : 0;
  p.sequences = values.device_sequences;
  p.varlen = values.varlen ? 1 : 0;
  p.num_heads_kv = static_cast<std::int32_t>(values.v.num_heads());
  p.head_dim = static_cast<std::int32_t>(values.v.head_dim());
  p.width = p.head_dim <= 64 ? 64 : 128;
  p.v_block = options.v_block;
  p.warm = warm ? 1 : 0;
  p.row_slices = static_cast<std::int32_t>(ceil_div(longest(values, &formats::SequenceExtent::rows_kv), kSliceRows));
  if (order == GroupOrder::sequence) return p;
  p.grouped = 1;
  p.rule = rule_of(options, order);
  p.chained = order == GroupOrder::label ? 0 : 1;
  p.bins = order == GroupOrder::chain_sorted ? kChainBins : 1;
  for (auto const& sequence : values.sequences) p.clusters = std::max(p.clusters, p.rule.count(sequence.seqlen_kv));
  p.padded_clusters = static_cast<std::int32_t>(ceil_div(p.clusters, kClusterPadding) * kClusterPadding);
  return p;
}

Grid grid_of(DeviceValues const& values, Params const& p) {
  std::int32_t const heads = static_cast<std::int32_t>(values.sequences.size()) * p.num_heads_kv;
  std::int64_t const windows = ceil_div(longest(values, &formats::SequenceExtent::seqlen_kv), window_blocks(p.v_block) * p.v_block);
  return {heads, p.row_slices, static_cast<std::int32_t>(windows)};
}

/// Places the workspace's arrays behind each other; with a null pointer it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  template <typename T>
  void place(T*& array, std::int64_t count) {
    constexpr std::size_t kAlignment = 256;
    if (base_ != nullptr) array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

std::size_t place_workspace(DeviceValues const& values, Params& p, std::byte* workspace) {
  std::int64_t const heads = std::ssize(values.sequences) * p.num_heads_kv;
  std::int64_t const clusters = heads * p.padded_clusters;
  Arena arena(workspace);
  arena.place(p.origin, heads * p.width);
  arena.place(p.means, clusters * p.width);
  arena.place(p.chained_means, clusters * p.width);
  arena.place(p.bins_per_distance, clusters);
  arena.place(p.sums, kFitSlices * clusters * p.width);
  arena.place(p.counts, kFitSlices * clusters);
  arena.place(p.buckets, total_rows(values) * p.num_heads_kv);
  arena.place(p.bucket_offsets, heads * p.row_slices * p.num_buckets());
  return arena.bytes();
}

/// Launches one stage after the other.
class Pipeline {
 public:
  Pipeline(Params const& params, Grid const& grid, void* stream, std::function<void(char const*)> const& launched)
      : params_(params), grid_(grid), stream_(static_cast<cudaStream_t>(stream)), launched_(launched) {}

  using Stage = cudaError_t (*)(Params const&, Grid const&, cudaStream_t);
  void run(char const* name, Stage stage) const {
    device::cuda::check(stage(params_, grid_, stream_), name);
    if (launched_) launched_(name);
  }

 private:
  Params const& params_;
  Grid const& grid_;
  cudaStream_t stream_;
  std::function<void(char const*)> const& launched_;
};

template <Source kSource>
void run_stages(Pipeline const& pipeline, Options const& options, Params const& p) {
  if (p.clusters > 0) {
    pipeline.run("start", launch_start);
    for (std::int32_t i = 0; i < (p.warm != 0 ? options.warm_iterations : options.iterations); ++i) {
      pipeline.run("fit", launch_fit<kSource>);
      pipeline.run("update", launch_update);
    }
    pipeline.run("chain", launch_chain);
    pipeline.run("assign", launch_assign<kSource>);
    pipeline.run("offsets", launch_offsets);
  }
  pipeline.run("scatter", launch_scatter);
  if (p.clusters > 0 && p.bins > 1) pipeline.run("exchange", launch_exchange<kSource>);
}

}  // namespace

std::string unsupported_reason(DeviceValues const& values, Options const& options) {
  constexpr std::int64_t kMaxHeads = 65535;  // of a grid's second dimension
  constexpr std::int64_t kMaxHeadDim = 128;
  auto const& v = values.v;
  if (v.head_dim() < 1 || v.head_dim() > kMaxHeadDim)
    return fmt::format("grouping on the GPU serves head_dim 1..{}, got {}: group on the CPU", kMaxHeadDim, v.head_dim());
  bool const grouped = formats::resolve_order(options, /*causal=*/false) != GroupOrder::sequence;
  if (grouped && options.clusters > kMaxDeviceClusters)
    return fmt::format("grouping on the GPU serves up to {} clusters, got {}: ask for fewer", kMaxDeviceClusters, options.clusters);
  if (options.v_block != 32 && options.v_block != 64 && options.v_block != 128)
    return fmt::format("grouping on the GPU serves v_block 32, 64 and 128, got {}: change the option", options.v_block);
  if (std::ssize(values.sequences) * v.num_heads() > kMaxHeads)
    return fmt::format("grouping on the GPU serves up to {} pairs of sequence and head, got {}: split the batch", kMaxHeads,
                       std::ssize(values.sequences) * v.num_heads());
  if (longest(values, &formats::SequenceExtent::rows_kv) > std::numeric_limits<std::int32_t>::max())
    return "grouping on the GPU serves sequences below 2^31 rows, got more: group on the CPU";
  return {};
}

std::int32_t num_clusters(DeviceValues const& values, Options const& options) { return params_of(values, options, false).clusters; }

std::size_t workspace_bytes(DeviceValues const& values, Options const& options) {
  Params p = params_of(values, options, false);
  return place_workspace(values, p, nullptr);
}

void load_kernels() {
  device::cuda::check(load_index_stages(), "loading the kernels of grouping");
  device::cuda::check(load_value_stages<Source::bf16>(), "loading the kernels of grouping");
  device::cuda::check(load_value_stages<Source::f16>(), "loading the kernels of grouping");
  device::cuda::check(load_value_stages<Source::any>(), "loading the kernels of grouping");
}

void group_values(DeviceValues const& values, Options const& options, bool warm, float* centroids, std::int32_t* permutation,
                  std::byte* workspace, void* stream, std::function<void(char const*)> const& launched) {
  if (std::string const reason = unsupported_reason(values, options); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  Params p = params_of(values, options, warm);
  if (p.row_slices == 0) return;  // no rows
  p.centroids = centroids;
  p.permutation = permutation;
  place_workspace(values, p, workspace);
  Grid const grid = grid_of(values, p);
  Pipeline const pipeline(p, grid, stream, launched);
  switch (source_of(values.v)) {
    case Source::bf16:
      return run_stages<Source::bf16>(pipeline, options, p);
    case Source::f16:
      return run_stages<Source::f16>(pipeline, options, p);
    case Source::any:
      return run_stages<Source::any>(pipeline, options, p);
  }
}

}  // namespace vcattn::grouping::cuda
