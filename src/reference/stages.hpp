#pragma once

// The steps of preparation, one at a time, in double.

#include <cstdint>
#include <vector>

#include "reference/problem_rows.hpp"

namespace vcattn::reference {

/// [EQ-ROPE] Row i of the matrix is at position i.
void apply_rope(Matrix& rows, Rope const& rope);

/// Mean of rows [first, first + count) per column, 0 where count is 0.
std::vector<double> column_mean(Matrix const& rows, std::int64_t first, std::int64_t count);
/// Subtracts one row vector from rows [first, first + count).
void subtract_from_rows(Matrix& rows, std::int64_t first, std::int64_t count, std::vector<double> const& vector);

/// Appends zero columns.
Matrix pad_cols(Matrix const& rows, std::int64_t cols);
/// Appends zero rows.
Matrix pad_rows(Matrix const& rows, std::int64_t count);
Matrix transpose(Matrix const& rows);
/// sorted[i] = rows[order[i]]
Matrix gather_rows(Matrix const& rows, std::vector<std::int64_t> const& order);

/// [EQ-HADAMARD] rows times the explicit Sylvester matrix H_ij = (-1)^popcount(i & j) / sqrt(n), n = cols a power of two.
Matrix hadamard(Matrix const& rows);

/// Largest magnitude in rows [first, first + count).
double amax(Matrix const& rows, std::int64_t first, std::int64_t count);
double amax(Matrix const& rows);

enum class CodeFormat : std::uint8_t { f32, bf16, e4m3, int8, nvfp4 };

/// Largest code value of a format with descales: [EQ-AMAX], [EQ-NVFP4] (E2M1 times its block scale).
double largest_code_value(CodeFormat format);
/// Largest magnitude of one code: as above, for NVFP4 that of E2M1.
double largest_element_code(CodeFormat format);

/// FP32 descales shared by `rows_per_value` consecutive rows each.
struct Descales {
  std::vector<float> values;
  std::int64_t rows_per_value = 1;

  double of_row(std::int64_t row) const { return static_cast<double>(values[static_cast<std::size_t>(row / rows_per_value)]); }
};
/// [EQ-AMAX] amax / largest code value per block of rows; 1 for formats without a descale.
Descales amax_descales(Matrix const& rows, CodeFormat format, std::int64_t rows_per_value);

inline constexpr std::int64_t kScaleFactorGroup = 16;  // [EQ-NVFP4]

/// A matrix in code. Real value of an element: value * descale of its row.
struct Coded {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint32_t> codes;         // [rows, cols] bits of each code
  std::vector<std::uint8_t> scale_factors;  // NVFP4: UE4M3 [rows, cols / 16]
  Matrix scaled;                            // [rows, cols] what was rounded to a code, in units of the code (and of its block scale)
  Matrix values;                            // [rows, cols] code, times its block scale for NVFP4
};
/// [EQ-SHAPED] An error of channel d moves the targets of the channels behind it: by error * W(d, f) inside a block of 16 channels, to
/// later blocks by rounded steps of the error times integers times the scale of column f.
struct Shaping {
  Matrix u, w;      // [cols, cols] unit upper triangular, w = u^-1
  Matrix integers;  // [cols, cols]
  std::vector<double> descale;
  double code_limit;  // largest magnitude of a code value
};
inline constexpr std::int64_t kShapingBlock = 16;
/// H += moment of the rows of every n-th of their tiles of 128, at most 64 tiles, from values rounded to 127 steps of their largest
/// magnitude.
void add_second_moment(Matrix& h, Matrix const& rows);
Shaping shaping_of(Matrix h, double code_limit);

/// Rounds every element to the nearest code, or with shaping to the code nearest to its moved target. NVFP4 scales share 16 columns.
Coded encode_rows(Matrix const& rows, CodeFormat format, Descales const& descales, Shaping const* shaping = nullptr);

/// [EQ-ENERGY] Share of V's energy about its mean that means over `block` sorted rows remove.
double energy_removed(Matrix const& v, std::vector<std::int64_t> const& order, std::int64_t block);

}  // namespace vcattn::reference
