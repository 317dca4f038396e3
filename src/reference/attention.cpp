#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/prepared_layout.hpp"
#include "reference/codecs.hpp"
#include "reference/preparation.hpp"
#include "reference/probabilities.hpp"

namespace vcattn::reference {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Scores of row i in code units: x = f s, plus what Q means add.
std::vector<double> scores_in_codes(QueryHead const& q, KeyValueHead const& kv, Options const& options, std::int64_t row,
                                    std::int64_t visible) {
  auto const multiplier = static_cast<double>(q.score_multiplier);
  std::vector<double> x(static_cast<std::size_t>(visible));
  for (std::int64_t j = 0; j < visible; ++j) {
    double s = dot(q.codes.values, row, kv.k.values, j);
    if (q.f16_scores) s = fp16().round(s);
    double const factor = has_unit_scores(options) ? multiplier : q.descale.of_row(row) * multiplier * kv.k_descale.of_row(j);
    double const mean_score = options.q_mean ? dot(q.tile_mean, row / formats::kTileRows, kv.k_high, j) : 0.0;  // [EQ-QMEAN]
    x[static_cast<std::size_t>(j)] = factor * s + multiplier * mean_score;
  }
  return x;
}

/// sum_j (P_ij R_j + p_ij mu_block(j)) for one channel, in units of v_descale.
double weighted_values(KeyValueHead const& kv, std::vector<double> const& p, std::int64_t v_block, std::int64_t channel) {
  double sum = 0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    auto const key = static_cast<std::int64_t>(j);
    double const mean = kv.v_mean.rows == 0 ? 0.0 : kv.v_mean(key / v_block, channel);
    sum += p[j] * (kv.v.values(channel, key) + mean);
  }
  return sum;
}

struct RowResult {
  std::vector<double> o;
  double lse;
};

RowResult attend_row(QueryHead const& q, KeyValueHead const& kv, Options const& options, std::int64_t row, std::int64_t visible,
                     std::int64_t head_dim) {
  RowResult result{std::vector<double>(static_cast<std::size_t>(head_dim), 0.0), -std::numeric_limits<double>::infinity()};
  double const correction = q.lse_correction[static_cast<std::size_t>(row)];
  if (std::isnan(correction)) return {std::vector<double>(static_cast<std::size_t>(head_dim), kNan), kNan};
  if (visible == 0) return result;

  std::vector<double> t = scores_in_codes(q, kv, options, row, visible);
  double const row_max = *std::max_element(t.begin(), t.end());
  double const row_const = row_constant(options, q.f16_scores, row_max);
  for (double& x : t) x += row_const;
  std::vector<double> const p = decoded_probabilities(options, t);

  double row_sum = 0;  // [EQ-ROWSUM]
  for (double const value : p) row_sum += value;
  for (std::int64_t d = 0; d < head_dim; ++d) {  // [EQ-RESTORE]
    auto const channel = static_cast<std::size_t>(d);
    result.o[channel] =
        kv.v_descale.of_row(d) * weighted_values(kv, p, options.v_block, d) / row_sum + static_cast<double>(kv.v_global_mean[channel]);
  }
  result.lse = log_sum_exp(options, row_sum, row_const, correction);
  return result;
}

RowResult exact_row(Matrix const& q, Matrix const& k, Matrix const& v, double tau, std::int64_t row, std::int64_t visible) {
  RowResult result{std::vector<double>(static_cast<std::size_t>(v.cols), 0.0), -std::numeric_limits<double>::infinity()};
  if (visible == 0) return result;
  std::vector<double> scores(static_cast<std::size_t>(visible));
  for (std::int64_t j = 0; j < visible; ++j) scores[static_cast<std::size_t>(j)] = tau * dot(q, row, k, j);
  double const row_max = *std::max_element(scores.begin(), scores.end());
  double row_sum = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    double const p = std::exp(scores[static_cast<std::size_t>(j)] - row_max);
    row_sum += p;
    for (std::int64_t d = 0; d < v.cols; ++d) result.o[static_cast<std::size_t>(d)] += p * v(j, d);
  }
  for (double& x : result.o) x /= row_sum;
  result.lse = row_max + std::log(row_sum);
  return result;
}

void store_row(AttentionResult& result, Problem const& problem, Sequence const& sequence, std::int64_t head, std::int64_t row,
               RowResult const& values) {
  std::copy(values.o.begin(), values.o.end(), result.o.begin() + o_index(problem, sequence, head, row));
  result.lse[static_cast<std::size_t>(lse_index(problem, sequence, head, row))] = values.lse;
}

}  // namespace

AttentionResult exact_attention(Problem const& problem) {
  double const tau = problem.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.q.head_dim())));
  AttentionResult result = empty_result(problem);
  for (Sequence const& sequence : sequences_of(problem)) {
    for (std::int64_t head = 0; head < problem.q.num_heads(); ++head) {
      Matrix const q = load_q(problem, sequence, head);
      Matrix const k = load_k(problem, sequence, kv_head_of(problem, head));
      Matrix const v = load_v(problem, sequence, kv_head_of(problem, head));
      bool const kv_finite = all_finite(k) && all_finite(v);
      for (std::int64_t row = 0; row < sequence.seqlen_q; ++row) {
        std::int64_t const visible = visible_keys(problem.causal, sequence.seqlen_q, sequence.seqlen_kv, row);
        RowResult values{std::vector<double>(static_cast<std::size_t>(v.cols), kNan), kNan};
        if (kv_finite && row_finite(q, row)) values = exact_row(q, k, v, tau, row, visible);
        store_row(result, problem, sequence, head, row, values);
      }
    }
  }
  return result;
}

AttentionResult recipe_attention(Problem const& problem, Options const& options) {
  AttentionResult result = empty_result(problem);
  for (PreparedSequence const& prepared : prepare_reference(problem, options)) {
    Sequence const& sequence = prepared.sequence;
    for (std::int64_t head = 0; head < problem.q.num_heads(); ++head) {
      QueryHead const& q = prepared.q[static_cast<std::size_t>(head)];
      KeyValueHead const& kv = prepared.kv[static_cast<std::size_t>(kv_head_of(problem, head))];
      for (std::int64_t row = 0; row < sequence.seqlen_q; ++row) {
        std::int64_t const visible = visible_keys(problem.causal, sequence.seqlen_q, sequence.seqlen_kv, row);
        store_row(result, problem, sequence, head, row, attend_row(q, kv, options, row, visible, problem.v.head_dim()));
      }
    }
  }
  return result;
}

}  // namespace vcattn::reference
