#include "reference/preparation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>

#include "formats/prepared_layout.hpp"
#include "reference/codecs.hpp"

namespace vcattn::reference {

namespace {

using formats::kTileRows;

constexpr double kCodesPerNat = 8 * std::numbers::log2e;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kSmallestAmax = 0x1p-100;

double f32(double x) { return static_cast<double>(static_cast<float>(x)); }

std::vector<double> f32(std::vector<double> vector) {
  for (double& x : vector) x = f32(x);
  return vector;
}

CodeFormat code_format(QkFormat format) {
  switch (format) {
    case QkFormat::f32:
      return CodeFormat::f32;
    case QkFormat::bf16:
      return CodeFormat::bf16;
    case QkFormat::e4m3:
      return CodeFormat::e4m3;
    case QkFormat::int8:
      return CodeFormat::int8;
    case QkFormat::nvfp4:
      return CodeFormat::nvfp4;
  }
  return CodeFormat::f32;
}

CodeFormat code_format(VFormat format) {
  switch (format) {
    case VFormat::f32:
      return CodeFormat::f32;
    case VFormat::bf16:
      return CodeFormat::bf16;
    case VFormat::e4m3:
      return CodeFormat::e4m3;
    case VFormat::nvfp4:
      return CodeFormat::nvfp4;
  }
  return CodeFormat::f32;
}

Matrix rotate(Matrix const& rows, Options const& options) {
  auto const padded_cols = std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(rows.cols, 32)));
  Matrix const padded = pad_cols(rows, static_cast<std::int64_t>(padded_cols));
  return options.hadamard ? hadamard(padded) : padded;
}

/// K of one head on its way to codes.
struct SmoothedKeys {
  std::vector<double> mean;  // [EQ-KMEAN] FP32 values [D]
  Matrix rows;               // sorted, smoothed, rotated [Sk, Dp]
};

SmoothedKeys smooth_keys(Matrix k, std::vector<std::int64_t> const& order, Options const& options) {
  SmoothedKeys keys;
  keys.mean.assign(static_cast<std::size_t>(k.cols), 0.0);
  if (options.k_mean) keys.mean = f32(column_mean(k, 0, k.rows));
  subtract_from_rows(k, 0, k.rows, keys.mean);
  keys.rows = rotate(gather_rows(k, order), options);
  return keys;
}

/// tau * q . k_mean per row.
std::vector<double> lse_corrections(Matrix const& q, std::vector<double> const& k_mean, double tau) {
  std::vector<double> corrections(static_cast<std::size_t>(q.rows));
  for (std::int64_t i = 0; i < q.rows; ++i) {
    double sum = 0;
    for (std::int64_t c = 0; c < q.cols; ++c) sum += q(i, c) * k_mean[static_cast<std::size_t>(c)];
    corrections[static_cast<std::size_t>(i)] = tau * sum;
  }
  return corrections;
}

/// Rows that hold a non-finite value become 0: they must not reach means, descales or codes of other rows. Returns which they were.
std::vector<std::int64_t> zero_nonfinite_rows(Matrix& rows) {
  std::vector<std::int64_t> zeroed;
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    if (row_finite(rows, i)) continue;
    std::fill_n(rows.data.begin() + i * rows.cols, rows.cols, 0.0);
    zeroed.push_back(i);
  }
  return zeroed;
}

/// [EQ-QMEAN] Subtracts and returns the means of 128-row tiles.
Matrix subtract_tile_means(Matrix& q) {
  Matrix means((q.rows + kTileRows - 1) / kTileRows, q.cols);
  for (std::int64_t tile = 0; tile < means.rows; ++tile) {
    std::int64_t const count = std::min(kTileRows, q.rows - tile * kTileRows);
    std::vector<double> const mean = f32(column_mean(q, tile * kTileRows, count));
    subtract_from_rows(q, tile * kTileRows, count, mean);
    std::copy(mean.begin(), mean.end(), means.data.begin() + tile * q.cols);
  }
  return means;
}

double usable_amax(double largest) { return largest < kSmallestAmax ? 1.0 : largest; }

/// [EQ-UNIT] k_descale of a KV head, from the amax of its K and of all its query heads.
double unit_k_descale(double k_amax, double q_amax, double tau, std::int64_t head_dim_padded) {
  double const product = usable_amax(k_amax) * usable_amax(q_amax) * std::abs(tau * kCodesPerNat);
  double const code_range = formats::unit_query_code_max(head_dim_padded) * formats::kUnitKeyCodeMax;
  double const exponent = product == 0 ? 0.0 : std::max(0.0, std::floor(std::log2(code_range / product) / 2));
  return f32(usable_amax(k_amax) / formats::kUnitKeyCodeMax * std::exp2(exponent));
}

struct UnitQuery {
  double descale, n;
};

/// [EQ-UNIT] q_descale and n of one query head.
UnitQuery unit_query(double q_amax, double k_descale, double tau, std::int64_t head_dim_padded) {
  double const c = tau * kCodesPerNat;
  double const code_max = formats::unit_query_code_max(head_dim_padded);
  double const largest = usable_amax(q_amax);
  if (c == 0) return {f32(largest / code_max), 0.0};
  double const n = std::max(1.0, std::ceil(largest * std::abs(c) * k_descale / code_max));
  return {f32(n / (c * k_descale)), n};
}

/// Largest code that shaped rounding may give. [EQ-SHAPED]
double code_limit(Options const& options, int unit_code_max) {
  return has_unit_scores(options) ? unit_code_max : largest_element_code(code_format(options.qk));
}

Descales one_descale(double value, std::int64_t rows) { return {{static_cast<float>(value)}, std::max<std::int64_t>(rows, 1)}; }

/// [EQ-AMAX] [EQ-NVFP4]
Descales qk_descales(Matrix const& rows, Options const& options, std::int64_t block) {
  bool const coded = options.qk == QkFormat::e4m3 || options.qk == QkFormat::int8;
  if (coded && options.qk_scaling == QkScaling::block) return amax_descales(rows, code_format(options.qk), block);
  Descales descales = amax_descales(rows, code_format(options.qk), std::max<std::int64_t>(rows.rows, 1));
  if (descales.values.empty()) descales.values.push_back(1.0f);
  return descales;
}

double largest_row_norm(Matrix const& values, Descales const& descales) {
  double largest = 0;
  for (std::int64_t i = 0; i < values.rows; ++i) {
    largest = std::max(largest, std::sqrt(dot(values, i, values, i)) * std::abs(descales.of_row(i)));
  }
  return largest;
}

/// [EQ-BOUND], with descales and multiplier folded into real units.
double score_bound(QueryHead const& q, KeyValueHead const& kv, double tau) {
  double const q_norm = largest_row_norm(q.codes.values, q.descale) + largest_row_norm(q.tile_mean, one_descale(1.0, q.tile_mean.rows));
  return std::abs(tau * kCodesPerNat) * q_norm * largest_row_norm(kv.k.values, kv.k_descale);
}

/// V of one head on its way to codes.
struct SmoothedValues {
  std::vector<double> global_mean;  // FP32 values [Dp]
  Matrix residual;                  // sorted [Sk, Dp]
  Matrix block_means;               // mu0 [blocks, Dp]; no rows without V-Smooth
};

/// [EQ-VSMOOTH]
SmoothedValues smooth_values(Matrix const& v, std::vector<std::int64_t> const& order, Options const& options) {
  SmoothedValues values{std::vector<double>(static_cast<std::size_t>(v.cols)), gather_rows(v, order), Matrix(0, v.cols)};
  if (!options.v_mean) return values;
  values.global_mean = f32(column_mean(v, 0, v.rows));
  Matrix& residual = values.residual;
  subtract_from_rows(residual, 0, residual.rows, values.global_mean);
  std::int64_t const block = options.v_block;
  for (std::int64_t first = 0; first < residual.rows; first += block) {
    std::int64_t const count = std::min(block, residual.rows - first);
    std::vector<double> const mean = column_mean(residual, first, count);
    subtract_from_rows(residual, first, count, mean);
    values.block_means.data.insert(values.block_means.data.end(), mean.begin(), mean.end());
    ++values.block_means.rows;
  }
  return values;
}

/// [EQ-VDESCALE]
Descales value_descales(SmoothedValues const& values, Options const& options) {
  Matrix const residual = transpose(values.residual);
  Matrix const means = transpose(values.block_means);
  double const largest_code = largest_code_value(code_format(options.v));
  std::vector<double> ranges;
  for (std::int64_t c = 0; c < residual.rows; ++c)
    ranges.push_back(std::max(amax(residual, c, 1) / largest_code, amax(means, c, 1) / 32768));
  if (!options.v_per_channel) std::fill(ranges.begin(), ranges.end(), *std::max_element(ranges.begin(), ranges.end()));
  bool const has_descale = options.v == VFormat::e4m3 || options.v == VFormat::nvfp4;
  Descales descales;
  for (double const range : ranges) descales.values.push_back(has_descale && range >= 0x1p-110 ? static_cast<float>(range) : 1.0f);
  return descales;
}

/// Means as stored.
struct StoredMeans {
  Matrix blocks;               // in units of the descale [blocks, Dp]
  std::vector<double> global;  // FP32 values [Dp]
};

/// [EQ-EMC] coded: transposed.
StoredMeans stored_means(SmoothedValues const& values, Coded const& coded, Descales const& descale, Options const& options) {
  Matrix means = values.block_means;
  std::vector<double> lost(values.global_mean.size(), 0.0);  // over all keys, by rounding the block means
  for (std::int64_t j = 0; j < means.rows; ++j) {
    std::int64_t const first = j * options.v_block;
    std::int64_t const last = std::min<std::int64_t>(first + options.v_block, values.residual.rows);
    for (std::int64_t c = 0; c < means.cols; ++c) {
      double error_sum = 0;
      for (std::int64_t i = first; i < last; ++i) error_sum += values.residual(i, c) - coded.values(c, i) * descale.of_row(c);
      if (options.emc) means(j, c) += error_sum / static_cast<double>(last - first);
      double const mean = means(j, c);
      means(j, c) = fp16().round(mean / descale.of_row(c));
      lost[static_cast<std::size_t>(c)] += static_cast<double>(last - first) * (mean - means(j, c) * descale.of_row(c));
    }
  }
  std::vector<double> global = values.global_mean;
  for (std::size_t c = 0; c < global.size(); ++c) {
    if (options.emc && means.rows > 0) global[c] = f32(global[c] + lost[c] / static_cast<double>(values.residual.rows));
  }
  return {std::move(means), std::move(global)};
}

void encode_values(KeyValueHead& kv, Matrix const& v, Options const& options) {
  SmoothedValues const values = smooth_values(v, kv.order, options);
  kv.v_descale = value_descales(values, options);
  std::int64_t const padded_keys = formats::ceil_div(v.rows, kTileRows) * kTileRows;
  kv.v = encode_rows(transpose(pad_rows(values.residual, padded_keys)), code_format(options.v), kv.v_descale);
  StoredMeans means = stored_means(values, kv.v, kv.v_descale, options);
  kv.v_mean = std::move(means.blocks);
  kv.v_global_mean.assign(means.global.begin(), means.global.end());
}

}  // namespace

double softmax_scale_f32(Problem const& problem) {
  return f32(problem.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.q.head_dim()))));
}

bool has_unit_scores(Options const& options) { return options.qk == QkFormat::e4m3 && options.qk_scaling == QkScaling::unit; }

namespace {

/// One KV head and the query heads that read it; they meet in [EQ-UNIT].
void prepare_group(PreparedSequence& prepared, Problem const& problem, Options const& options, std::int64_t head_kv) {
  Sequence const& sequence = prepared.sequence;
  double const tau = softmax_scale_f32(problem);
  std::int64_t const group = problem.q.num_heads() / problem.k.num_heads();

  KeyValueHead& kv = prepared.kv[static_cast<std::size_t>(head_kv)];
  Matrix k = load_k(problem, sequence, head_kv);
  Matrix v = load_v(problem, sequence, head_kv);
  std::size_t const nonfinite_kv_rows = zero_nonfinite_rows(k).size() + zero_nonfinite_rows(v).size();
  kv.order = key_order(problem, sequence, head_kv);
  SmoothedKeys const keys = smooth_keys(k, kv.order, options);

  std::vector<Matrix> q_rows;
  for (std::int64_t g = 0; g < group; ++g) {
    QueryHead& q = prepared.q[static_cast<std::size_t>(head_kv * group + g)];
    Matrix rows = load_q(problem, sequence, head_kv * group + g);
    std::vector<std::int64_t> const nonfinite_rows = zero_nonfinite_rows(rows);
    q.lse_correction = lse_corrections(rows, keys.mean, tau);
    for (std::int64_t const i : nonfinite_rows) q.lse_correction[static_cast<std::size_t>(i)] = kNan;
    if (nonfinite_kv_rows != 0) std::fill(q.lse_correction.begin(), q.lse_correction.end(), kNan);
    q_rows.push_back(rotate(rows, options));
    if (options.q_mean) q.tile_mean = subtract_tile_means(q_rows.back());
  }

  std::optional<Shaping> k_shaping, q_shaping;  // [EQ-SHAPED]
  if (options.qk_rounding != QkRounding::nearest) {
    Matrix of_queries(keys.rows.cols, keys.rows.cols);
    for (Matrix const& rows : q_rows) add_second_moment(of_queries, rows);
    k_shaping = shaping_of(of_queries, code_limit(options, formats::kUnitKeyCodeMax));
  }
  if (options.qk_rounding == QkRounding::shaped) {
    Matrix of_keys(keys.rows.cols, keys.rows.cols);
    add_second_moment(of_keys, keys.rows);
    q_shaping = shaping_of(of_keys, code_limit(options, formats::unit_query_code_max(keys.rows.cols)));
  }

  kv.k_descale = qk_descales(keys.rows, options, options.k_block);
  if (has_unit_scores(options)) {
    double q_amax = 0;
    for (Matrix const& rows : q_rows) q_amax = std::max(q_amax, amax(rows));
    kv.k_descale = one_descale(unit_k_descale(amax(keys.rows), q_amax, tau, keys.rows.cols), keys.rows.rows);
  }
  kv.k = encode_rows(keys.rows, code_format(options.qk), kv.k_descale, k_shaping ? &*k_shaping : nullptr);
  if (options.q_mean) {
    kv.k_high = keys.rows;
    for (double& x : kv.k_high.data) x = bf16().round(x);
  }

  for (std::int64_t g = 0; g < group; ++g) {
    QueryHead& q = prepared.q[static_cast<std::size_t>(head_kv * group + g)];
    Matrix const& rows = q_rows[static_cast<std::size_t>(g)];
    q.descale = qk_descales(rows, options, options.q_block);
    q.score_multiplier = static_cast<float>(tau * f32(kCodesPerNat));
    if (has_unit_scores(options)) {
      UnitQuery const unit = unit_query(amax(rows), kv.k_descale.of_row(0), tau, rows.cols);
      q.descale = one_descale(unit.descale, rows.rows);
      q.score_multiplier = static_cast<float>(unit.n);
    }
    q.codes = encode_rows(rows, code_format(options.qk), q.descale, q_shaping ? &*q_shaping : nullptr);
    q.score_bound = score_bound(q, kv, tau);
    double const f16_bound = options.scores == ScoreFormat::automatic ? 1024 : 1900;
    bool const fits_f16 = options.scores != ScoreFormat::f32 && q.score_bound <= f16_bound;
    bool const f16_form = options.exp_form != ExpForm::paper && options.exp_form != ExpForm::affine;
    q.f16_scores = has_unit_scores(options) && f16_form && fits_f16;
  }

  encode_values(kv, pad_cols(v, keys.rows.cols), options);
}

}  // namespace

std::vector<PreparedSequence> prepare_reference(Problem const& problem, Options const& options) {
  std::vector<PreparedSequence> result;
  for (Sequence const& sequence : sequences_of(problem)) {
    PreparedSequence prepared{sequence, {}, {}};
    prepared.q.resize(static_cast<std::size_t>(problem.q.num_heads()));
    prepared.kv.resize(static_cast<std::size_t>(problem.k.num_heads()));
    for (std::int64_t head_kv = 0; head_kv < problem.k.num_heads(); ++head_kv) prepare_group(prepared, problem, options, head_kv);
    result.push_back(std::move(prepared));
  }
  return result;
}

}  // namespace vcattn::reference
