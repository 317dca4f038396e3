#pragma once

// Sequential and positioned reads of an input file, with errors that name it.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace vcattn::cli {

/// A regular file opened for reading. Errors: ErrorCode::io when it is missing, not a regular file, or shorter than a read asks for.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path const& path);

  /// For messages: a very long path is shortened.
  std::string const& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  void read(std::uint64_t offset, std::span<std::byte> out);

 private:
  std::string name_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

}  // namespace vcattn::cli
