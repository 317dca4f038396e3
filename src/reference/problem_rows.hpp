#pragma once

// A problem seen as plain double matrices: one sequence and one head at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vcattn/attention.hpp"

namespace vcattn::reference {

/// Row-major.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(std::int64_t row_count, std::int64_t col_count)
      : rows(row_count), cols(col_count), data(static_cast<std::size_t>(row_count * col_count)) {}
  double& operator()(std::int64_t row, std::int64_t col) { return data[static_cast<std::size_t>(row * cols + col)]; }
  double operator()(std::int64_t row, std::int64_t col) const { return data[static_cast<std::size_t>(row * cols + col)]; }
};

double dot(Matrix const& a, std::int64_t row_a, Matrix const& b, std::int64_t row_b);

/// What attention returns, contiguous: o [B, Sq, H, D] (varlen [1, total_q, H, D]), lse [B, H, Sq] (varlen [H, total_q]).
struct AttentionResult {
  std::vector<double> o;
  std::vector<double> lse;
};

/// Rows of one batch entry, or of one segment of a varlen problem.
struct Sequence {
  std::int64_t batch = 0;                 // index into the first dimension of the tensors
  std::int64_t q_begin = 0, k_begin = 0;  // first row inside that batch entry
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_kv = 0;  // valid keys
  std::int64_t rows_kv = 0;    // key rows, padding included
};
std::vector<Sequence> sequences_of(Problem const& problem);

/// Rows [first, first + count) of one head.
Matrix load_rows(TensorView const& tensor, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count);
/// Q after RoPE, valid K after RoPE, valid V; in the caller's order.
Matrix load_q(Problem const& problem, Sequence const& sequence, std::int64_t head);
Matrix load_k(Problem const& problem, Sequence const& sequence, std::int64_t head_kv);
Matrix load_v(Problem const& problem, Sequence const& sequence, std::int64_t head_kv);

/// order[i] = row of the caller that becomes sorted row i, over valid keys; identity where the problem has no permutation.
std::vector<std::int64_t> key_order(Problem const& problem, Sequence const& sequence, std::int64_t head_kv);

/// KV head that a query head reads.
std::int64_t kv_head_of(Problem const& problem, std::int64_t head);

/// Keys 0 .. visible - 1 are seen by query row `row`.
std::int64_t visible_keys(bool causal, std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t row);

bool all_finite(Matrix const& rows);
bool row_finite(Matrix const& rows, std::int64_t row);

/// Index of a query row in AttentionResult: its first channel in o, its entry in lse.
std::int64_t o_index(Problem const& problem, Sequence const& sequence, std::int64_t head, std::int64_t row);
std::int64_t lse_index(Problem const& problem, Sequence const& sequence, std::int64_t head, std::int64_t row);
AttentionResult empty_result(Problem const& problem);

}  // namespace vcattn::reference
