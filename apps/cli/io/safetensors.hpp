#pragma once

// The safetensors container: 8-byte little-endian header length, JSON header, tensor bytes. Everything a file claims is checked before it
// is used.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/input_file.hpp"

namespace vcattn::cli {

/// Position of one tensor. `dtype` is the container's word: BF16, F16, F32, I32, ...
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes from the start of the tensor data
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  ///< in the order of their bytes
};

/// Largest header accepted, as in the reference implementation.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Checks a JSON header against the number of data bytes behind it: sizes that match the shapes where the dtype is known, no overlap, hole,
/// duplicate or byte left over. A tensor of any other dtype is listed, for its reader to refuse. Errors: ErrorCode::io.
SafetensorsHeader parse_safetensors_header(std::string_view json_text, std::uint64_t data_bytes);

class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::filesystem::path const& path);

  std::string const& name() const { return file_.name(); }
  SafetensorsHeader const& header() const { return header_; }
  /// Errors: ErrorCode::io, naming the tensors that the file has.
  TensorEntry const& entry(std::string_view tensor) const;
  std::vector<std::byte> read(TensorEntry const& entry);

 private:
  InputFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
};

/// A tensor to be written; its bytes follow through SafetensorsWriter::append in the order of the specs.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

/// Streams tensors into a file that appears only at commit().
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path const& path, std::span<TensorSpec const> tensors,
                    std::map<std::string, std::string> const& metadata);
  void append(std::span<std::byte const> bytes);
  void commit();

 private:
  AtomicFile file_;
  std::uint64_t bytes_left_ = 0;
};

}  // namespace vcattn::cli
