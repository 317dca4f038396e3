#pragma once

// Output files that exist completely or not at all: bytes go to a temporary file beside the target, which is renamed at the end.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace vcattn::cli {

/// Opened at construction, so that an unwritable target is found before the long work. Removed again unless commit() is reached, also on
/// SIGINT, SIGTERM and SIGHUP. A target that is not a regular file (/dev/null, a pipe) is written directly. Errors: ErrorCode::io.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path const& target);
  ~AtomicFile();
  AtomicFile(AtomicFile const&) = delete;
  AtomicFile& operator=(AtomicFile const&) = delete;

  void write(std::span<std::byte const> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// Flushes and moves the file to its target; nothing may be written afterwards.
  void commit();

 private:
  std::filesystem::path target_;     ///< as the user named it
  std::filesystem::path temporary_;  ///< empty when the target is written directly
  std::filesystem::path resolved_;   ///< target behind symbolic links
  int fd_ = -1;
  int cleanup_slot_ = -1;
};

/// Makes SIGINT, SIGTERM and SIGHUP remove the temporary files before the process ends, and ignores SIGPIPE and SIGXFSZ, so that a write
/// fails instead. Call once at the start of main().
void remove_temporary_files_on_signal();

/// A path of the command line and what it is for, as messages name it.
struct NamedPath {
  std::string_view role;
  std::string path;  ///< empty: not given
};

/// Refuses an output that is another output or an input. Errors: ErrorCode::invalid_argument.
void require_distinct_paths(std::span<NamedPath const> outputs, std::span<NamedPath const> inputs = {});

}  // namespace vcattn::cli
