#include "grouping/order.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/config.hpp"
#include "device/cpu/gemm.hpp"
#include "formats/prepared_layout.hpp"
#include "grouping/reversals.hpp"

namespace vcattn::grouping {

namespace {

/// Squared distances between centroids, in the order that a path visits them.
class DistanceTable {
 public:
  explicit DistanceTable(RowMatrix const& centroids) : count_(centroids.count), values_(static_cast<std::size_t>(count_ * count_)) {
    std::vector<float> const norms = squared_norms(centroids);
    device::cpu::gemm_kernels(device::cpu::best_isa())
        .nt_f32(count_, count_, centroids.dim, centroids.row(0), centroids.dim, centroids.row(0), centroids.dim, values_.data(), count_);
    for (std::int64_t i = 0; i < count_; ++i) {
      for (std::int64_t j = 0; j < count_; ++j) {
        float& value = values_[static_cast<std::size_t>(i * count_ + j)];
        value = std::max(0.0f, norms[static_cast<std::size_t>(i)] + norms[static_cast<std::size_t>(j)] - 2.0f * value);
      }
    }
  }
  float operator()(std::int32_t i, std::int32_t j) const { return values_[static_cast<std::size_t>(i * count_ + j)]; }

 private:
  std::int64_t count_;
  std::vector<float> values_;
};

std::int32_t farthest_from_origin(RowMatrix const& centroids) {
  std::vector<float> const norms = squared_norms(centroids);
  return static_cast<std::int32_t>(std::max_element(norms.begin(), norms.end()) - norms.begin());
}

/// Ties, and distances that are NaN, go to the lowest index.
std::vector<std::int32_t> greedy_chain(DistanceTable const& distance, std::int32_t start, std::int64_t clusters) {
  std::vector<std::int32_t> path{start};
  std::vector<std::int32_t> left(static_cast<std::size_t>(clusters));
  std::iota(left.begin(), left.end(), 0);
  left.erase(left.begin() + start);
  while (!left.empty()) {
    auto nearest = left.begin();
    for (auto it = left.begin(); it != left.end(); ++it) {
      if (distance(path.back(), *it) < distance(path.back(), *nearest)) nearest = it;
    }
    path.push_back(*nearest);
    left.erase(nearest);
  }
  return path;
}

/// A part of the path and what its reversal adds to the path's length.
struct Reversal {
  float added = 0.0f;
  PathPart part;

  auto operator<=>(Reversal const&) const = default;
};

/// The reversal of a part from `first` on that shortens the path most; adds 0 where none shortens it.
Reversal best_reversal(DistanceTable const& distance, std::vector<std::int32_t> const& path, std::size_t first) {
  Reversal best;
  for (std::size_t last = first + 1; last < path.size(); ++last) {
    float const before = first > 0 ? distance(path[first - 1], path[last]) - distance(path[first - 1], path[first]) : 0.0f;
    float const after = last + 1 < path.size() ? distance(path[first], path[last + 1]) - distance(path[last], path[last + 1]) : 0.0f;
    float const added = before + after;
    if (added < best.added) best = {added, {static_cast<std::int32_t>(first), static_cast<std::int32_t>(last)}};
  }
  return best;
}

void improve_by_reversals(DistanceTable const& distance, std::vector<std::int32_t>& path) {
  for (int scan = 0; scan < kMaxChainScans; ++scan) {
    std::vector<Reversal> candidates;
    for (std::size_t first = 0; first + 1 < path.size(); ++first) {
      Reversal const best = best_reversal(distance, path, first);
      if (best.added < 0.0f) candidates.push_back(best);
    }
    if (candidates.empty()) return;
    while (!candidates.empty()) {
      PathPart const done = std::ranges::min_element(candidates)->part;
      std::reverse(path.begin() + done.first, path.begin() + done.last + 1);
      std::erase_if(candidates, [&](Reversal& candidate) { return !survives_reversal(candidate.part, done); });
    }
  }
}

/// Unsigned integer that orders like the number (NaN at an end), with `tie` below it: a total order that std::sort may rely on.
std::uint64_t sort_key(float number, std::uint32_t tie) {
  std::uint32_t const bits = core::f32_bits(number);
  std::uint32_t const ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (static_cast<std::uint64_t>(ascending) << 32) | tie;
}
std::uint32_t tie_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

constexpr int kLanes = 16;

/// Dot product with a fixed order of additions that vectorises on every instruction set.
float dot(float const* a, float const* b, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[c + l] * b[c + l];
  }
  for (int l = 0; c < count; ++c, ++l) lanes[l] += a[c] * b[c];
  for (int stride = kLanes / 2; stride >= 1; stride /= 2) {
    for (int l = 0; l < stride; ++l) lanes[l] += lanes[l + stride];
  }
  return lanes[0];
}

void add_weighted_rows(RowMatrix const& tokens, std::span<std::int32_t const> rows, float weight, std::vector<float>& sum) {
  for (std::int32_t const row : rows) {
    float const* const token = tokens.row(row);
    for (std::int64_t c = 0; c < tokens.dim; ++c) sum[static_cast<std::size_t>(c)] += weight * token[c];
  }
}

/// Sorts the rows of two neighbouring blocks along mean(second) - mean(first): for these means the best split into blocks of the same
/// sizes.
void split_pair(RowMatrix const& tokens, std::span<std::int32_t> pair, std::size_t first_rows) {
  std::vector<float> direction(static_cast<std::size_t>(tokens.dim), 0.0f);
  add_weighted_rows(tokens, pair.first(first_rows), -1.0f / static_cast<float>(first_rows), direction);
  add_weighted_rows(tokens, pair.subspan(first_rows), 1.0f / static_cast<float>(pair.size() - first_rows), direction);
  std::vector<std::uint64_t> keys(pair.size());
  for (std::size_t i = 0; i < pair.size(); ++i) {
    keys[i] = sort_key(dot(tokens.row(pair[i]), direction.data(), tokens.dim), static_cast<std::uint32_t>(i));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> const before(pair.begin(), pair.end());
  std::transform(keys.begin(), keys.end(), pair.begin(), [&](std::uint64_t key) { return before[tie_of(key)]; });
}

}  // namespace

std::vector<std::int32_t> chain_clusters(RowMatrix const& centroids, ChainStart start) {
  if (centroids.count == 0) return {};
  DistanceTable const distance(centroids);
  std::vector<std::int32_t> path(static_cast<std::size_t>(centroids.count));
  std::iota(path.begin(), path.end(), 0);
  if (start == ChainStart::greedy) path = greedy_chain(distance, farthest_from_origin(centroids), centroids.count);
  improve_by_reversals(distance, path);
  return path;
}

std::vector<std::int32_t> rows_along_path(Members const& members, std::span<std::int32_t const> path, std::span<float const> keys) {
  std::vector<std::int32_t> order;
  order.reserve(members.rows.size());
  std::vector<std::uint64_t> sorted;
  for (std::int32_t const cluster : path) {
    auto const rows = members.of(cluster);
    if (keys.empty()) {
      order.insert(order.end(), rows.begin(), rows.end());
      continue;
    }
    sorted.clear();
    for (std::int32_t const row : rows) sorted.push_back(sort_key(keys[static_cast<std::size_t>(row)], static_cast<std::uint32_t>(row)));
    std::sort(sorted.begin(), sorted.end());
    for (std::uint64_t const key : sorted) order.push_back(static_cast<std::int32_t>(tie_of(key)));
  }
  return order;
}

void exchange_between_blocks(RowMatrix const& tokens, std::int64_t block, int rounds, std::span<std::int32_t> order) {
  std::int64_t const count = std::ssize(order);
  std::int64_t const pairs = formats::ceil_div(count, block) - 1;  // pair b: blocks b and b + 1
  for (int pass = 0; pass < 2 * rounds; ++pass) {
    std::int64_t const parity = pass % 2;
    tbb::parallel_for(std::int64_t{0}, formats::ceil_div(std::max<std::int64_t>(pairs - parity, 0), 2), [&](std::int64_t i) {
      std::int64_t const begin = (2 * i + parity) * block;
      std::int64_t const length = std::min(2 * block, count - begin);
      split_pair(tokens, order.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(length)), static_cast<std::size_t>(block));
    });
  }
}

}  // namespace vcattn::grouping
