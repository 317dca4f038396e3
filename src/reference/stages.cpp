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
  double const integer = std::clamp(round_to_even(x), -127.0, 127.0);
  return {static_cast<std::uint32_t>(static_cast<std::int32_t>(integer)) & 0xFFu, integer};
}

/// [EQ-NVFP4] UE4M3 scale of 16 columns, in units of the descale.
std::uint8_t block_scale_factor(Matrix const& scaled, std::int64_t row, std::int64_t first_col) {
  double amax16 = 0;
  for (std::int64_t c = first_col; c < first_col + kScaleFactorGroup; ++c) amax16 = std::max(amax16, std::abs(scaled(row, c)));
  return static_cast<std::uint8_t>(ue4m3_encode(amax16 / e2m1().largest()));
}

}  // namespace

Coded encode_rows(Matrix const& rows, CodeFormat format, Descales const& descales) {
  Coded coded{rows.rows, rows.cols, {}, {}, Matrix(rows.rows, rows.cols), Matrix(rows.rows, rows.cols)};
  coded.codes.resize(rows.data.size());
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t c = 0; c < rows.cols; ++c) coded.scaled(i, c) = rows(i, c) / descales.of_row(i);
    double scale_factor = 1;
    for (std::int64_t c = 0; c < rows.cols; ++c) {
      if (format == CodeFormat::nvfp4 && c % kScaleFactorGroup == 0) {
        coded.scale_factors.push_back(block_scale_factor(coded.scaled, i, c));
        scale_factor = e4m3().decode(coded.scale_factors.back());
      }
      double& scaled = coded.scaled(i, c);
      scaled *= scale_factor == 0 ? 0.0 : 1.0 / scale_factor;  // a zero keeps its sign
      Code const code = encode_element(scaled, format);
      coded.codes[static_cast<std::size_t>(i * rows.cols + c)] = code.bits;
      coded.values(i, c) = code.value * scale_factor;
    }
  }
  return coded;
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
