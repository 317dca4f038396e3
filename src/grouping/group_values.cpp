#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <numeric>

#include "device/cpu/parallel.hpp"
#include "formats/prepared_layout.hpp"
#include "grouping/cluster_rule.hpp"
#include "grouping/grouping_options.hpp"
#include "grouping/kmeans.hpp"
#include "grouping/order.hpp"
#include "grouping/state_fit.hpp"
#include "grouping/value_rows.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn {

namespace {

using grouping::ChainStart;
using grouping::Members;
using grouping::RowMatrix;

constexpr int kExchangeRounds = 2;  // docs/experiments/grouping.md

/// One (batch, kv head): where its values come from and where its results go.
struct HeadTask {
  TensorView const& v;
  Options const& options;
  GroupOrder order;
  std::int64_t batch;
  std::int64_t head;
  float const* warm_centroids;         // [clusters, head_dim], nullptr: cold start
  std::span<std::int32_t> valid_rows;  // permutation of the valid rows, filled in
  std::span<float> centroids;          // [clusters, head_dim], filled in

  std::int64_t num_valid() const { return std::ssize(valid_rows); }
  std::int64_t clusters() const { return std::ssize(centroids) / v.head_dim(); }
};

RowMatrix initial_centroids(HeadTask const& task) {
  RowMatrix centroids(task.clusters(), task.v.head_dim());
  if (task.warm_centroids != nullptr) {
    std::copy_n(task.warm_centroids, centroids.values.size(), centroids.values.begin());
    return centroids;
  }
  for (std::int64_t i = 0; i < centroids.count; ++i) {
    std::int64_t const row = grouping::strided_row(i, centroids.count, task.num_valid());
    grouping::read_row(task.v, task.batch, row, task.head, centroids.row(i));
  }
  return centroids;
}

std::vector<float> mean_row(RowMatrix const& rows) {
  std::vector<float> mean(static_cast<std::size_t>(rows.dim), 0.0f);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t c = 0; c < rows.dim; ++c) mean[static_cast<std::size_t>(c)] += rows.row(i)[c] / static_cast<float>(rows.count);
  }
  return mean;
}

void shift_row(float* row, std::vector<float> const& origin, float sign) {
  for (std::size_t c = 0; c < origin.size(); ++c) row[c] += sign * origin[c];
}

/// Valid rows about `origin`: a large mean of V would cost the distances their precision.
RowMatrix tokens_about(HeadTask const& task, std::vector<float> const& origin) {
  RowMatrix tokens(task.num_valid(), task.v.head_dim());
  tbb::parallel_for(std::int64_t{0}, tokens.count, [&](std::int64_t i) {
    grouping::read_row(task.v, task.batch, i, task.head, tokens.row(i));
    shift_row(tokens.row(i), origin, -1.0f);
  });
  return tokens;
}

RowMatrix rows_in_order(RowMatrix const& rows, std::span<std::int32_t const> order) {
  RowMatrix ordered(rows.count, rows.dim);
  for (std::int64_t i = 0; i < rows.count; ++i) std::copy_n(rows.row(order[static_cast<std::size_t>(i)]), rows.dim, ordered.row(i));
  return ordered;
}

/// Lloyd iterations; the last one also lays out the rows of its clusters. Returns the order of the tokens; the centroids then have the
/// order of the clusters, where a warm start finds a chain.
std::vector<std::int32_t> cluster_and_order(HeadTask const& task, std::int32_t iterations, RowMatrix const& tokens, RowMatrix& centroids) {
  std::vector<std::int32_t> labels(static_cast<std::size_t>(tokens.count));
  for (std::int32_t iteration = 1; iteration < iterations; ++iteration) {
    grouping::assign(tokens, centroids, labels);
    grouping::update_centroids(tokens, grouping::collect_members(labels, centroids.count), centroids);
  }
  std::vector<std::int32_t> path(static_cast<std::size_t>(centroids.count));
  std::iota(path.begin(), path.end(), 0);
  if (task.order != GroupOrder::label) {
    path = grouping::chain_clusters(centroids, task.warm_centroids != nullptr ? ChainStart::stored : ChainStart::greedy);
  }
  std::vector<float> keys(task.order == GroupOrder::chain_sorted ? labels.size() : 0);
  grouping::assign(tokens, centroids, labels, path, keys);
  Members const members = grouping::collect_members(labels, centroids.count);
  grouping::update_centroids(tokens, members, centroids);
  centroids = rows_in_order(centroids, path);
  return grouping::rows_along_path(members, path, keys);
}

void group_head(HeadTask const& task) {
  if (task.num_valid() == 0) return;
  RowMatrix centroids = initial_centroids(task);
  std::vector<float> const origin = mean_row(centroids);
  for (std::int64_t i = 0; i < centroids.count; ++i) shift_row(centroids.row(i), origin, -1.0f);
  RowMatrix const tokens = tokens_about(task, origin);

  std::int32_t const iterations = task.warm_centroids != nullptr ? task.options.warm_iterations : task.options.iterations;
  std::vector<std::int32_t> order = cluster_and_order(task, iterations, tokens, centroids);
  if (task.order == GroupOrder::chain_sorted) grouping::exchange_between_blocks(tokens, task.options.v_block, kExchangeRounds, order);

  std::copy(order.begin(), order.end(), task.valid_rows.begin());
  for (std::int64_t i = 0; i < centroids.count; ++i) shift_row(centroids.row(i), origin, 1.0f);
  std::copy(centroids.values.begin(), centroids.values.end(), task.centroids.begin());
}

/// State of sequence order: every row in its place, centroids zero.
GroupingState sequence_state(TensorView const& v, std::vector<std::int32_t> const& valid_rows, std::int32_t clusters) {
  GroupingState state = grouping::empty_state(v, valid_rows, clusters);
  auto const heads = static_cast<std::size_t>(v.batch() * v.num_heads());
  state.permutation.resize(heads * static_cast<std::size_t>(v.seqlen()));
  for (std::size_t i = 0; i < state.permutation.size(); ++i) {
    state.permutation[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(v.seqlen()));
  }
  state.centroids.assign(heads * static_cast<std::size_t>(clusters) * static_cast<std::size_t>(v.head_dim()), 0.0f);
  return state;
}

}  // namespace

std::int32_t default_clusters(std::int64_t seqlen_kv, GroupOrder order) { return grouping::default_cluster_rule(order).wanted(seqlen_kv); }

GroupingState group_values(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k,
                           GroupingState const* warm) {
  std::vector<std::int32_t> const valid_rows = grouping::checked_valid_rows(v, seqused_k);
  grouping::check_options(options);
  GroupOrder const order = formats::resolve_order(options, /*causal=*/false);
  std::int32_t const clusters = grouping::num_clusters(options, valid_rows);
  if (warm != nullptr) grouping::check_warm_state(*warm, v, valid_rows, clusters);
  GroupingState state = sequence_state(v, valid_rows, clusters);
  if (clusters == 0) return state;

  auto const group_one = [&](std::int64_t batch_head) {
    std::int64_t const batch = batch_head / v.num_heads();
    std::int32_t const num_valid = valid_rows[static_cast<std::size_t>(batch)];
    auto const centroid_begin = static_cast<std::size_t>(batch_head * clusters * v.head_dim());
    auto const centroid_count = static_cast<std::size_t>(grouping::num_clusters(options, order, num_valid) * v.head_dim());
    HeadTask const task{
        v,
        options,
        order,
        batch,
        batch_head % v.num_heads(),
        warm != nullptr ? warm->centroids.data() + centroid_begin : nullptr,
        std::span(state.permutation).subspan(static_cast<std::size_t>(batch_head * v.seqlen()), static_cast<std::size_t>(num_valid)),
        std::span(state.centroids).subspan(centroid_begin, centroid_count)};
    group_head(task);
  };
  tbb::task_arena arena(device::cpu::concurrency(options.num_threads));
  arena.execute([&] {
    // Isolated, so that a thread waiting inside a head does not start another one: scratch is one head (FP32) per thread at most.
    tbb::parallel_for(std::int64_t{0}, v.batch() * v.num_heads(),
                      [&](std::int64_t batch_head) { tbb::this_task_arena::isolate([&] { group_one(batch_head); }); });
  });
  return state;
}

}  // namespace vcattn
