#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <numeric>

#include "formats/prepared_layout.hpp"
#include "grouping/value_rows.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn {

namespace {

/// One (batch, kv head) under a permutation.
struct EnergyTask {
  TensorView const& v;
  std::int64_t batch;
  std::int64_t head;
  std::int64_t num_valid;
  std::int64_t block;
  std::int32_t const* permutation;  // nullptr: sequence order

  std::int64_t row(std::int64_t i) const { return permutation == nullptr ? i : permutation[i]; }
};

/// Sums over the rows of one block, about an origin.
struct BlockSums {
  std::vector<double> sum;  // [head_dim]
  double squares = 0.0;
};

BlockSums sum_block(EnergyTask const& task, std::vector<float> const& origin, std::int64_t block_index) {
  BlockSums sums{std::vector<double>(origin.size(), 0.0)};
  std::vector<float> token(origin.size());
  std::int64_t const first = block_index * task.block;
  for (std::int64_t i = first; i < std::min(first + task.block, task.num_valid); ++i) {
    grouping::read_row(task.v, task.batch, task.row(i), task.head, token.data());
    for (std::size_t c = 0; c < token.size(); ++c) {
      double const x = static_cast<double>(token[c]) - static_cast<double>(origin[c]);
      sums.sum[c] += x;
      sums.squares += x * x;
    }
  }
  return sums;
}

double squared_norm(std::vector<double> const& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }

/// With s_b the sum of block b about any origin, s their total: sum ||v - g||^2 = sum ||v||^2 - ||s||^2 / n, and the means keep
/// sum_b ||s_b||^2 / n_b - ||s||^2 / n of it. [EQ-ENERGY]
double removed_share(EnergyTask const& task) {
  if (task.num_valid == 0) return 0.0;
  std::vector<float> origin(static_cast<std::size_t>(task.v.head_dim()));  // a row of V, so that a constant V has exactly no energy
  grouping::read_row(task.v, task.batch, 0, task.head, origin.data());
  std::vector<BlockSums> blocks(static_cast<std::size_t>(formats::ceil_div(task.num_valid, task.block)));
  tbb::parallel_for(std::size_t{0}, blocks.size(),
                    [&](std::size_t b) { blocks[b] = sum_block(task, origin, static_cast<std::int64_t>(b)); });

  std::vector<double> total(origin.size(), 0.0);
  double squares = 0.0;
  double in_means = 0.0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::int64_t const rows = std::min(task.block, task.num_valid - static_cast<std::int64_t>(b) * task.block);
    in_means += squared_norm(blocks[b].sum) / static_cast<double>(rows);
    squares += blocks[b].squares;
    for (std::size_t c = 0; c < total.size(); ++c) total[c] += blocks[b].sum[c];
  }
  double const about_mean = squared_norm(total) / static_cast<double>(task.num_valid);
  return squares == 0.0 ? 0.0 : (in_means - about_mean) / (squares - about_mean);
}

void check_permutation(TensorView const& v, std::span<std::int32_t const> permutation, std::span<std::int32_t const> valid_rows) {
  std::int64_t const expected = v.batch() * v.num_heads() * v.seqlen();
  if (std::ssize(permutation) != expected) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("permutation must have batch * num_heads * seqlen = {} entries, got {}: pass [B, Hkv, Sk]", expected,
                            permutation.size()));
  }
  for (std::int64_t batch_head = 0; batch_head < v.batch() * v.num_heads(); ++batch_head) {
    std::int32_t const num_valid = valid_rows[static_cast<std::size_t>(batch_head / v.num_heads())];
    for (std::int32_t const row :
         permutation.subspan(static_cast<std::size_t>(batch_head * v.seqlen()), static_cast<std::size_t>(num_valid))) {
      if (row >= 0 && row < num_valid) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("permutation must keep the {} valid rows in front, got row {} among them: group again", num_valid, row));
    }
  }
}

}  // namespace

std::vector<double> value_energy_removed(TensorView const& v, std::span<std::int32_t const> permutation, std::int32_t block,
                                         std::span<std::int32_t const> seqused_k) {
  std::vector<std::int32_t> const valid_rows = grouping::checked_valid_rows(v, seqused_k);
  if (block < 1) throw Error(ErrorCode::invalid_argument, fmt::format("block must be at least 1 row, got {}: pass options.v_block", block));
  if (!permutation.empty()) check_permutation(v, permutation, valid_rows);
  std::vector<double> removed(static_cast<std::size_t>(v.batch() * v.num_heads()));
  for (std::int64_t i = 0; i < std::ssize(removed); ++i) {
    std::int64_t const batch = i / v.num_heads();
    std::int32_t const* const head_permutation = permutation.empty() ? nullptr : permutation.data() + i * v.seqlen();
    removed[static_cast<std::size_t>(i)] =
        removed_share({v, batch, i % v.num_heads(), valid_rows[static_cast<std::size_t>(batch)], block, head_permutation});
  }
  return removed;
}

}  // namespace vcattn
