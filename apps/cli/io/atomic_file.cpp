#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "parse.hpp"
#include "vcattn/types.hpp"

namespace vcattn::cli {
namespace {

// Paths that a signal handler must unlink: a slot is either null or a string that stays allocated until the slot is null again.
std::array<std::atomic<char*>, 8> cleanup_paths;

int register_for_cleanup(std::string const& path) {
  auto copy = std::make_unique<char[]>(path.size() + 1);
  std::memcpy(copy.get(), path.c_str(), path.size() + 1);
  for (std::size_t slot = 0; slot < cleanup_paths.size(); ++slot) {
    char* expected = nullptr;
    if (cleanup_paths[slot].compare_exchange_strong(expected, copy.get())) {
      copy.release();
      return static_cast<int>(slot);
    }
  }
  return -1;
}

void forget_cleanup(int slot) {
  if (slot >= 0) std::unique_ptr<char[]> const freed(cleanup_paths[static_cast<std::size_t>(slot)].exchange(nullptr));
}

extern "C" void on_termination(int signal_number) {
  for (auto& slot : cleanup_paths) {
    if (char const* const path = slot.load()) ::unlink(path);
  }
  ::_exit(128 + signal_number);
}

[[noreturn]] void fail(std::filesystem::path const& target, int error, std::string_view advice) {
  throw Error(ErrorCode::io, fmt::format("cannot write '{}': {}; {}", shortened(target.string()), std::strerror(error), advice));
}

constexpr std::string_view kAdvice = "give a path in an existing, writable folder";

bool is_special_file(std::filesystem::path const& path) {
  std::error_code ignored;
  auto const status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !std::filesystem::is_directory(status);
}

/// A new file in `folder`, under a name of its own: a name derived from the target could be too long.
std::pair<int, std::filesystem::path> create_temporary(std::filesystem::path const& folder) {
  constexpr int kMostAttempts = 10000;  // names left behind by earlier processes of the same id are skipped
  static std::atomic<std::uint64_t> counter{0};
  for (int attempt = 0;; ++attempt) {
    auto path = folder / fmt::format(".vcattn-{}-{}.tmp", ::getpid(), counter++);
    int const fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return {fd, std::move(path)};
    if (errno != EEXIST || attempt == kMostAttempts) return {-1, {}};
  }
}

/// The file behind a path as far as it exists; empty where that cannot be said or where sharing does no harm (/dev/null).
std::filesystem::path identity(std::string const& path) {
  if (path.empty()) return {};
  std::error_code error;
  auto const absolute = std::filesystem::absolute(path, error);
  if (error) return {};
  auto const resolved = std::filesystem::weakly_canonical(absolute, error);
  return error || is_special_file(resolved) ? std::filesystem::path() : resolved;
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path const& target) : target_(target) {
  std::error_code error;
  resolved_ = std::filesystem::weakly_canonical(target, error);
  if (error) fail(target_, error.value(), kAdvice);
  if (std::filesystem::is_directory(resolved_, error)) fail(target_, EISDIR, "give the name of a file");
  if (target.empty() || !resolved_.has_filename()) fail(target_, ENOENT, kAdvice);

  if (is_special_file(resolved_)) {
    fd_ = ::open(resolved_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) fail(target_, errno, kAdvice);
    return;
  }
  if (std::filesystem::exists(resolved_, error) && ::access(resolved_.c_str(), W_OK) != 0) fail(target_, errno, kAdvice);
  std::tie(fd_, temporary_) = create_temporary(resolved_.parent_path());
  if (fd_ < 0) fail(target_, errno, kAdvice);
  cleanup_slot_ = register_for_cleanup(temporary_.string());
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  forget_cleanup(cleanup_slot_);
}

void AtomicFile::write(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    ssize_t const written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(target_, errno, "free space or choose another place");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::close(std::exchange(fd_, -1)) != 0) fail(target_, errno, "free space or choose another place");
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), resolved_.c_str()) != 0) fail(target_, errno, kAdvice);
  temporary_.clear();
}

void remove_temporary_files_on_signal() {
  for (int const number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(number, on_termination) == SIG_IGN) std::signal(number, SIG_IGN);  // as under nohup
  }
  for (int const number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);  // EPIPE and EFBIG are reported like other errors
}

void require_distinct_paths(std::span<NamedPath const> outputs, std::span<NamedPath const> inputs) {
  std::vector<std::pair<std::string_view, std::filesystem::path>> seen;
  for (NamedPath const& input : inputs) seen.emplace_back(input.role, identity(input.path));
  for (NamedPath const& output : outputs) {
    auto const path = identity(output.path);
    if (path.empty()) continue;
    for (auto const& [role, other] : seen) {
      if (path != other) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} and {} name the same file '{}'; give each a path of its own", role, output.role, shortened(output.path)));
    }
    seen.emplace_back(output.role, path);
  }
}

}  // namespace vcattn::cli
