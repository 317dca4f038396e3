#include "io/input_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "parse.hpp"
#include "vcattn/types.hpp"

namespace vcattn::cli {

InputFile::InputFile(std::filesystem::path const& path) : name_(shortened(path.string())) {
  std::error_code error;
  auto const status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw Error(ErrorCode::io, fmt::format("cannot read '{}': {}; check the path", name_, std::strerror(error ? error.value() : ENOENT)));
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::io, fmt::format("cannot read '{}': a regular file is required; give the path of a data file", name_));
  }
  size_ = std::filesystem::file_size(path, error);
  stream_.open(path, std::ios::binary);
  if (error || !stream_)
    throw Error(ErrorCode::io, fmt::format("cannot read '{}': {}; check its permissions", name_, std::strerror(errno)));
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) {
  if (out.empty()) return;
  stream_.seekg(static_cast<std::streamoff>(offset));
  stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  if (!stream_) {
    throw Error(ErrorCode::io, fmt::format("'{}': {} bytes at offset {} required, the file ends at {}; it is truncated, copy it again",
                                           name_, out.size(), offset, size_));
  }
}

}  // namespace vcattn::cli
