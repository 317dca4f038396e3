#include "reference/problem_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "reference/codecs.hpp"
#include "reference/stages.hpp"

namespace vcattn::reference {

namespace {

template <typename T>
T element(TensorView const& tensor, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<std::byte const*>(tensor.data) + offset * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

double load_element(TensorView const& tensor, std::int64_t offset) {
  switch (tensor.dtype) {
    case DType::f32:
      return static_cast<double>(element<float>(tensor, offset));
    case DType::f16:
      return fp16().decode(element<std::uint16_t>(tensor, offset));
    case DType::bf16:
      return bf16().decode(element<std::uint16_t>(tensor, offset));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double dot(Matrix const& a, std::int64_t row_a, Matrix const& b, std::int64_t row_b) {
  auto const x = a.data.begin() + row_a * a.cols;
  return std::inner_product(x, x + a.cols, b.data.begin() + row_b * b.cols, 0.0);
}

std::vector<Sequence> sequences_of(Problem const& problem) {
  bool const varlen = !problem.cu_seqlens_q.empty();
  auto const count = varlen ? problem.cu_seqlens_q.size() - 1 : static_cast<std::size_t>(problem.q.batch());
  std::vector<Sequence> sequences(count);
  for (std::size_t b = 0; b < count; ++b) {
    Sequence& s = sequences[b];
    if (varlen) {
      s = {0,
           problem.cu_seqlens_q[b],
           problem.cu_seqlens_k[b],
           problem.cu_seqlens_q[b + 1] - problem.cu_seqlens_q[b],
           0,
           problem.cu_seqlens_k[b + 1] - problem.cu_seqlens_k[b]};
    } else {
      s = {static_cast<std::int64_t>(b), 0, 0, problem.q.seqlen(), 0, problem.k.seqlen()};
    }
    s.seqlen_kv = problem.seqused_k.empty() ? s.rows_kv : problem.seqused_k[b];
  }
  return sequences;
}

Matrix load_rows(TensorView const& tensor, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t count) {
  auto const& stride = tensor.stride;
  Matrix rows(count, tensor.head_dim());
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < rows.cols; ++d) {
      rows(i, d) = load_element(tensor, batch * stride[0] + (first + i) * stride[1] + head * stride[2] + d * stride[3]);
    }
  }
  return rows;
}

Matrix load_q(Problem const& problem, Sequence const& sequence, std::int64_t head) {
  Matrix rows = load_rows(problem.q, sequence.batch, head, sequence.q_begin, sequence.seqlen_q);
  if (problem.rope) apply_rope(rows, *problem.rope);
  return rows;
}

Matrix load_k(Problem const& problem, Sequence const& sequence, std::int64_t head_kv) {
  Matrix rows = load_rows(problem.k, sequence.batch, head_kv, sequence.k_begin, sequence.seqlen_kv);
  if (problem.rope) apply_rope(rows, *problem.rope);
  return rows;
}

Matrix load_v(Problem const& problem, Sequence const& sequence, std::int64_t head_kv) {
  return load_rows(problem.v, sequence.batch, head_kv, sequence.k_begin, sequence.seqlen_kv);
}

std::vector<std::int64_t> key_order(Problem const& problem, Sequence const& sequence, std::int64_t head_kv) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(sequence.seqlen_kv));
  std::iota(order.begin(), order.end(), 0);
  if (!problem.permutation.empty()) {
    // [B, Hkv, Sk]; varlen: [Hkv, Sk_b] one sequence after another.
    std::int64_t const rows_before = sequence.batch * problem.k.seqlen() + sequence.k_begin;
    auto const first = problem.permutation.begin() + problem.k.num_heads() * rows_before + head_kv * sequence.rows_kv;
    std::copy_n(first, sequence.seqlen_kv, order.begin());
  }
  return order;
}

std::int64_t kv_head_of(Problem const& problem, std::int64_t head) { return head / (problem.q.num_heads() / problem.k.num_heads()); }

std::int64_t visible_keys(bool causal, std::int64_t seqlen_q, std::int64_t seqlen_kv, std::int64_t row) {
  return causal ? std::clamp<std::int64_t>(row + seqlen_kv - seqlen_q + 1, 0, seqlen_kv) : seqlen_kv;
}

bool all_finite(Matrix const& rows) {
  return std::all_of(rows.data.begin(), rows.data.end(), [](double x) { return std::isfinite(x); });
}

bool row_finite(Matrix const& rows, std::int64_t row) {
  auto const first = rows.data.begin() + row * rows.cols;
  return std::all_of(first, first + rows.cols, [](double x) { return std::isfinite(x); });
}

std::int64_t o_index(Problem const& problem, Sequence const& sequence, std::int64_t head, std::int64_t row) {
  std::int64_t const q_row = sequence.batch * problem.q.seqlen() + sequence.q_begin + row;
  return (q_row * problem.q.num_heads() + head) * problem.v.head_dim();
}

std::int64_t lse_index(Problem const& problem, Sequence const& sequence, std::int64_t head, std::int64_t row) {
  return (sequence.batch * problem.q.num_heads() + head) * problem.q.seqlen() + sequence.q_begin + row;
}

AttentionResult empty_result(Problem const& problem) {
  auto const rows = static_cast<std::size_t>(problem.q.batch() * problem.q.seqlen() * problem.q.num_heads());
  return {std::vector<double>(rows * static_cast<std::size_t>(problem.v.head_dim()), 0.0),
          std::vector<double>(rows, -std::numeric_limits<double>::infinity())};
}

}  // namespace vcattn::reference
