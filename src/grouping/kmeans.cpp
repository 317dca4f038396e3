#include "grouping/kmeans.hpp"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>

#include "device/cpu/gemm.hpp"
#include "formats/prepared_layout.hpp"
#include "grouping/nearest.hpp"

namespace vcattn::grouping {

namespace baseline {
void nearest(std::int64_t clusters, float const* dots, float const* squared_norms, std::int32_t* labels);
}
#if defined(__x86_64__)
namespace avx2 {
void nearest(std::int64_t clusters, float const* dots, float const* squared_norms, std::int32_t* labels);
}
namespace avx512 {
void nearest(std::int64_t clusters, float const* dots, float const* squared_norms, std::int32_t* labels);
}
#endif

NearestKernel nearest_kernel(device::cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == device::cpu::Isa::avx2) return avx2::nearest;
  if (isa == device::cpu::Isa::avx512) return avx512::nearest;
#endif
  (void)isa;
  return baseline::nearest;
}

std::int64_t strided_row(std::int64_t index, std::int64_t clusters, std::int64_t count) { return (2 * index + 1) * count / (2 * clusters); }

std::vector<float> squared_norms(RowMatrix const& rows) {
  std::vector<float> norms(static_cast<std::size_t>(rows.count));
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float sum = 0.0f;
    for (std::int64_t c = 0; c < rows.dim; ++c) sum += rows.row(i)[c] * rows.row(i)[c];
    norms[static_cast<std::size_t>(i)] = sum;
  }
  return norms;
}

namespace {

/// Predecessor and successor of every cluster on a path.
struct PathNeighbours {
  std::vector<std::int32_t> before, after;

  explicit PathNeighbours(std::span<std::int32_t const> path) : before(path.size()), after(path.size()) {
    for (std::size_t p = 0; p < path.size(); ++p) {
      auto const cluster = static_cast<std::size_t>(path[p]);
      before[cluster] = path[p == 0 ? p : p - 1];
      after[cluster] = path[p + 1 == path.size() ? p : p + 1];
    }
  }
};

}  // namespace

void assign(RowMatrix const& tokens, RowMatrix const& centroids, std::span<std::int32_t> labels, std::span<std::int32_t const> path,
            std::span<float> path_keys) {
  auto const isa = device::cpu::best_isa();
  auto const gemm_nt = device::cpu::gemm_kernels(isa).nt_f32;
  auto const nearest = nearest_kernel(isa);
  std::int64_t const clusters = centroids.count;
  std::vector<float> const norms = squared_norms(centroids);
  PathNeighbours const neighbours(path);
  tbb::enumerable_thread_specific<std::vector<float>> scratch(static_cast<std::size_t>(clusters * kAssignRows));

  tbb::parallel_for(std::int64_t{0}, formats::ceil_div(tokens.count, kAssignRows), [&](std::int64_t chunk) {
    std::vector<float>& dots = scratch.local();
    std::int64_t const first = chunk * kAssignRows;
    std::int64_t const rows = std::min<std::int64_t>(kAssignRows, tokens.count - first);
    gemm_nt(clusters, rows, tokens.dim, centroids.row(0), centroids.dim, tokens.row(first), tokens.dim, dots.data(), kAssignRows);
    std::array<std::int32_t, kAssignRows> chunk_labels;
    nearest(clusters, dots.data(), norms.data(), chunk_labels.data());
    std::copy_n(chunk_labels.begin(), rows, labels.begin() + first);
    if (path_keys.empty()) return;
    auto const distance = [&](std::int32_t cluster, std::int64_t r) {
      return norms[static_cast<std::size_t>(cluster)] - 2.0f * dots[static_cast<std::size_t>(cluster * kAssignRows + r)];
    };
    for (std::int64_t r = 0; r < rows; ++r) {
      auto const label = static_cast<std::size_t>(chunk_labels[static_cast<std::size_t>(r)]);
      path_keys[static_cast<std::size_t>(first + r)] = distance(neighbours.before[label], r) - distance(neighbours.after[label], r);
    }
  });
}

Members collect_members(std::span<std::int32_t const> labels, std::int64_t clusters) {
  Members members;
  members.rows.resize(labels.size());
  members.begin.assign(static_cast<std::size_t>(clusters) + 1, 0);
  for (std::int32_t const label : labels) ++members.begin[static_cast<std::size_t>(label) + 1];
  for (std::size_t j = 1; j < members.begin.size(); ++j) members.begin[j] += members.begin[j - 1];
  std::vector<std::int32_t> next = members.begin;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    members.rows[static_cast<std::size_t>(next[static_cast<std::size_t>(labels[i])]++)] = static_cast<std::int32_t>(i);
  }
  return members;
}

void update_centroids(RowMatrix const& tokens, Members const& members, RowMatrix& centroids) {
  tbb::parallel_for(std::int64_t{0}, centroids.count, [&](std::int64_t cluster) {
    auto const rows = members.of(cluster);
    if (rows.empty()) return;
    float* const centroid = centroids.row(cluster);
    std::fill_n(centroid, centroids.dim, 0.0f);
    for (std::int32_t const row : rows) {
      float const* const token = tokens.row(row);
      for (std::int64_t c = 0; c < tokens.dim; ++c) centroid[c] += token[c];
    }
    auto const count = static_cast<float>(rows.size());
    for (std::int64_t c = 0; c < centroids.dim; ++c) centroid[c] /= count;
  });
}

}  // namespace vcattn::grouping
