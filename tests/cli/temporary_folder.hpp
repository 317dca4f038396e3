#pragma once

// A folder of its own for each test, removed with everything in it.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vcattn::test {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;

  std::string file(std::string_view name) const { return (path_ / name).string(); }
  /// Names of what the folder holds, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

void write_file(std::string const& path, std::string_view bytes);
std::string read_file(std::string const& path);

}  // namespace vcattn::test
