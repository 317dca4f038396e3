#include "reference/stages.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "reference/codecs.hpp"

namespace vcattn::reference {

void apply_rope(Matrix& rows, Rope const& rope) {
  std::int64_t const half = rope.rotary_dim / 2;
  bool const interleaved = rope.style == RopeStyle::interleaved;
  for (std::int64_t position = 0; position < rows.rows; ++position) {
    for (std::int64_t i = 0; i < half; ++i) {
      auto const c = static_cast<double>(rope.cos[position * half + i]);
      auto const s = static_cast<double>(rope.sin[position * half + i]);
      double& x = rows(position, rope.first_channel + (interleaved ? 2 * i : i));
      double& y = rows(position, rope.first_channel + (interleaved ? 2 * i + 1 : i + half));
      double const rotated_x = x * c - y * s;
      y = y * c + x * s;
      x = rotated_x;
    }
  }
}

std::vector<double> column_mean(Matrix const& rows, std::int64_t first, std::int64_t count) {
  std::vector<double> mean(static_cast<std::size_t>(rows.cols));
  for (std::int64_t c = 0; c < rows.cols; ++c) {
    double sum = 0;
    for (std::int64_t i = first; i < first + count; ++i) sum += rows(i, c);
    mean[static_cast<std::size_t>(c)] = count == 0 ? 0.0 : sum / static_cast<double>(count);
  }
  return mean;
}

void subtract_from_rows(Matrix& rows, std::int64_t first, std::int64_t count, std::vector<double> const& vector) {
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) rows(i, c) -= vector[static_cast<std::size_t>(c)];
  }
}

Matrix pad_cols(Matrix const& rows, std::int64_t cols) {
  Matrix padded(rows.rows, cols);
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) padded(i, c) = rows(i, c);
  }
  return padded;
}

Matrix pad_rows(Matrix const& rows, std::int64_t count) {
  Matrix padded = rows;
  padded.rows = count;
  padded.data.resize(static_cast<std::size_t>(count * rows.cols));
  return padded;
}

Matrix transpose(Matrix const& rows) {
  Matrix transposed(rows.cols, rows.rows);
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) transposed(c, i) = rows(i, c);
  }
  return transposed;
}

Matrix gather_rows(Matrix const& rows, std::vector<std::int64_t> const& order) {
  Matrix sorted(static_cast<std::int64_t>(order.size()), rows.cols);
  for (std::int64_t i = 0; i < sorted.rows; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) sorted(i, c) = rows(order[static_cast<std::size_t>(i)], c);
  }
  return sorted;
}

Matrix hadamard(Matrix const& rows) {
  std::int64_t const n = rows.cols;
  Matrix rotated(rows.rows, n);
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t c = 0; c < n; ++c) {
      double sum = 0;
      for (std::int64_t k = 0; k < n; ++k) sum += std::popcount(static_cast<std::uint64_t>(k & c)) % 2 == 0 ? rows(i, k) : -rows(i, k);
      rotated(i, c) = sum / std::sqrt(static_cast<double>(n));
    }
  }
  return rotated;
}

double amax(Matrix const& rows, std::int64_t first, std::int64_t count) {
  double largest = 0;
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) largest = std::max(largest, std::abs(rows(i, c)));
  }
  return largest;
}

double amax(Matrix const& rows) { return amax(rows, 0, rows.rows); }

double largest_code_value(CodeFormat format) {
  switch (format) {
    case CodeFormat::f32:
    case CodeFormat::bf16:
      return 1;
    case CodeFormat::e4m3:
      return e4m3().largest();
    case CodeFormat::int8:
      return 127;
    case CodeFormat::nvfp4:
      return e4m3().largest() * e2m1().largest();
  }
  return 1;
}

double largest_element_code(CodeFormat format) { return format == CodeFormat::nvfp4 ? e2m1().largest() : largest_code_value(format); }

Descales amax_descales(Matrix const& rows, CodeFormat format, std::int64_t rows_per_value) {
  Descales descales{{}, rows_per_value};
  bool const has_descale = format != CodeFormat::f32 && format != CodeFormat::bf16;
  for (std::int64_t first = 0; first < rows.rows; first += rows_per_value) {
    double const largest = amax(rows, first, std::min(rows_per_value, rows.rows - first));
    bool const usable = has_descale && largest >= 0x1p-100;
    descales.values.push_back(usable ? static_cast<float>(largest / largest_code_value(format)) : 1.0f);
  }
  return descales;
}

namespace {

struct Code {
  std::uint32_t bits;
  double value;
};

Code encode_element(double x, CodeFormat format) {
  switch (format) {
    case CodeFormat::f32:
      return {std::bit_cast<std::uint32_t>(static_cast<float>(x)), static_cast<double>(static_cast<float>(x))};
    case CodeFormat::bf16:
      return {bf16().encode(x), bf16().round(x)};
    case CodeFormat::e4m3:
      return {e4m3().encode(x), e4m3().round(x)};
    case CodeFormat::nvfp4:
      return {e2m1().encode(x), e2m1().round(x)};
    case CodeFormat::int8:
      break;
  }
  double const integer = round_to_even(std::clamp(x, -127.0, 127.0));
  return {static_cast<std::uint32_t>(static_cast<std::int32_t>(integer)) & 0xFFu, integer};
}

/// [EQ-NVFP4] UE4M3 scale of 16 columns, in units of the descale.
std::uint8_t block_scale_factor(double const* scaled) {
  double amax16 = 0;
  for (double const* x = scaled; x < scaled + kScaleFactorGroup; ++x) amax16 = std::max(amax16, std::abs(*x));
  return static_cast<std::uint8_t>(ue4m3_encode(amax16 / e2m1().largest()));
}

/// Rounds one row. x: values in units of the descale; targets start as x and move as errors are fed back.
void encode_row(Coded& coded, std::int64_t row, std::vector<double> const& x, CodeFormat format, Shaping const* shaping) {
  std::vector<double> targets = x;
  std::int64_t const cols = coded.cols;
  double scale_factor = 1;
  double unit = 1;  // of the steps of errors
  if (format == CodeFormat::nvfp4) {
    unit = 0;
    for (std::int64_t d = 0; d < cols; d += kScaleFactorGroup) unit = std::max(unit, e4m3().decode(block_scale_factor(x.data() + d)));
  }
  for (std::int64_t d = 0; d < cols; ++d) {
    auto const channel = static_cast<std::size_t>(d);
    if (format == CodeFormat::nvfp4 && d % kScaleFactorGroup == 0) {
      coded.scale_factors.push_back(block_scale_factor(x.data() + d));
      scale_factor = e4m3().decode(coded.scale_factors.back());
    }
    double& scaled = coded.scaled(row, d);
    scaled = targets[channel] * (scale_factor == 0 ? 0.0 : 1.0 / scale_factor);  // a zero keeps its sign
    if (shaping != nullptr) scaled = std::clamp(scaled, -shaping->code_limit, shaping->code_limit);
    Code const code = encode_element(scaled, format);
    coded.codes[static_cast<std::size_t>(row * cols + d)] = code.bits;
    coded.values(row, d) = code.value * scale_factor;
    if (shaping == nullptr) continue;
    double const error = coded.values(row, d) - targets[channel];  // [EQ-SHAPED]
    double const steps = unit == 0 ? 0.0 : std::clamp(round_to_even(error * 64 / unit), -127.0, 127.0);
    std::int64_t const block_end = (d / kShapingBlock + 1) * kShapingBlock;
    for (std::int64_t f = d + 1; f < cols; ++f) {
      double const integer_part = steps * unit / 64 * shaping->integers(d, f) * shaping->descale[static_cast<std::size_t>(f)];
      targets[static_cast<std::size_t>(f)] += f < block_end ? error * shaping->w(d, f) : integer_part;
    }
  }
}

}  // namespace

Coded encode_rows(Matrix const& rows, CodeFormat format, Descales const& descales, Shaping const* shaping) {
  Coded coded{rows.rows, rows.cols, {}, {}, Matrix(rows.rows, rows.cols), Matrix(rows.rows, rows.cols)};
  coded.codes.resize(rows.data.size());
  std::vector<double> x(static_cast<std::size_t>(rows.cols));
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) x[static_cast<std::size_t>(c)] = rows(i, c) / descales.of_row(i);
    encode_row(coded, i, x, format, shaping);
  }
  return coded;
}

void add_second_moment(Matrix& h, Matrix const& rows) {
  double const largest = amax(rows);
  if (largest < 0x1p-100) return;
  auto const steps = static_cast<double>(static_cast<float>(127 / largest));
  double const weight = (largest / 127) * (largest / 127);
  std::int64_t const tiles = (rows.rows + 127) / 128;
  std::int64_t const step = std::max<std::int64_t>(1, (tiles + 63) / 64);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (row / 128 % step != 0) continue;
    std::vector<double> z8;
    for (std::int64_t c = 0; c < rows.cols; ++c) z8.push_back(round_to_even(rows(row, c) * steps));
    for (std::int64_t i = 0; i < rows.cols; ++i) {
      for (std::int64_t j = 0; j < rows.cols; ++j) h(i, j) += weight * z8[static_cast<std::size_t>(i)] * z8[static_cast<std::size_t>(j)];
    }
  }
}

Shaping shaping_of(Matrix h, double code_limit) {
  std::int64_t const n = h.cols;
  Shaping shaping{Matrix(n, n), Matrix(n, n), Matrix(n, n), std::vector<double>(static_cast<std::size_t>(n), 1.0), code_limit};
  Matrix& u = shaping.u;
  Matrix& w = shaping.w;
  for (std::int64_t i = 0; i < n; ++i) u(i, i) = w(i, i) = 1;
  double trace = 0;
  for (std::int64_t i = 0; i < n; ++i) trace += h(i, i);
  if (trace == 0) return shaping;
  for (std::int64_t i = 0; i < n; ++i) h(i, i) += 0.01 * trace / static_cast<double>(n);

  // H = U diag U^T from the last column to the first.
  std::vector<double> diag(static_cast<std::size_t>(n));
  for (std::int64_t j = n - 1; j >= 0; --j) {
    auto const behind = [&](std::int64_t i) {  // sum over k > j of U_ik U_jk diag_k
      double sum = 0;
      for (std::int64_t k = j + 1; k < n; ++k) sum += u(i, k) * u(j, k) * diag[static_cast<std::size_t>(k)];
      return sum;
    };
    double const pivot = h(j, j) - behind(j);
    diag[static_cast<std::size_t>(j)] = pivot;
    for (std::int64_t i = 0; i < j; ++i) u(i, j) = (h(i, j) - behind(i)) / pivot;
  }
  // U W = 1, from the row above the last one up.
  for (std::int64_t i = n - 2; i >= 0; --i) {
    for (std::int64_t j = i + 1; j < n; ++j) {
      for (std::int64_t k = i + 1; k <= j; ++k) w(i, j) -= u(i, k) * w(k, j);
    }
  }
  for (std::int64_t f = 0; f < n; ++f) {
    double largest = 0;
    for (std::int64_t d = 0; d < f / kShapingBlock * kShapingBlock; ++d) largest = std::max(largest, std::abs(w(d, f)));
    if (largest < 0x1p-100) continue;
    shaping.descale[static_cast<std::size_t>(f)] = largest / 127;
    for (std::int64_t d = 0; d < f / kShapingBlock * kShapingBlock; ++d) shaping.integers(d, f) = round_to_even(w(d, f) * 127 / largest);
  }
  return shaping;
}

double energy_removed(Matrix const& v, std::vector<std::int64_t> const& order, std::int64_t block) {
  Matrix residual = gather_rows(v, order);
  auto const energy = [&] { return std::inner_product(residual.data.begin(), residual.data.end(), residual.data.begin(), 0.0); };
  subtract_from_rows(residual, 0, residual.rows, column_mean(residual, 0, residual.rows));
  double const total = energy();
  for (std::int64_t first = 0; first < residual.rows; first += block) {
    std::int64_t const count = std::min(block, residual.rows - first);
    subtract_from_rows(residual, first, count, column_mean(residual, first, count));
  }
  return total == 0 ? 0.0 : 1.0 - energy() / total;
}

}  // namespace vcattn::reference
