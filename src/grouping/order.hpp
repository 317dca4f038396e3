#pragma once

// From clusters to a row order in which neighbours are alike: blocks of rows straddle clusters, so what follows what matters.

#include <cstdint>
#include <span>
#include <vector>

#include "grouping/kmeans.hpp"

namespace vcattn::grouping {

/// The chain keeps a table of the distances of all pairs of clusters.
inline constexpr std::int32_t kMaxClusters = 4096;

/// Path that the reversals of a chain begin with.
enum class ChainStart {
  greedy,  ///< nearest neighbours from the centroid farthest from the origin
  stored,  ///< the centroids as they come: the chain of an earlier step, which needs few reversals
};

/// Order of the clusters [EQ-CHAIN].
std::vector<std::int32_t> chain_clusters(RowMatrix const& centroids, ChainStart start);

/// Rows cluster by cluster in the order `path`; inside a cluster ascending by key (stable), or ascending by row where `keys` is empty.
std::vector<std::int32_t> rows_along_path(Members const& members, std::span<std::int32_t const> path, std::span<float const> keys = {});

/// Lets neighbouring blocks of `block` rows exchange rows: each pair is sorted along the difference of its means and cut again
/// [EQ-EXCHANGE]. No pair's exchange lowers the energy of the block means. Even pairs first, then odd ones, `rounds` times.
void exchange_between_blocks(RowMatrix const& tokens, std::int64_t block, int rounds, std::span<std::int32_t> order);

}  // namespace vcattn::grouping
