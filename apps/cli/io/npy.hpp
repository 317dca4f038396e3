#pragma once

// NumPy's .npy files, versions 1 to 3: C-ordered '<f2', '<f4' and '<f8' arrays.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "vcattn/types.hpp"

namespace vcattn::cli {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

/// Parses the Python dictionary of a header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. Errors: ErrorCode::io.
NpyHeader parse_npy_header(std::string_view text);

struct NpyArray {
  DType dtype = DType::f32;  ///< '<f8' is converted to f32
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

/// Errors: ErrorCode::io, naming the file.
NpyArray read_npy(std::filesystem::path const& path);

}  // namespace vcattn::cli
