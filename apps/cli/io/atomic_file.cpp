#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

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
  throw Error(ErrorCode::io, fmt::format("cannot write '{}': {}; {}", target.string(), std::strerror(error), advice));
}

constexpr std::string_view kAdvice = "give a path in an existing, writable folder";

bool is_special_file(std::filesystem::path const& path) {
  std::error_code ignored;
  auto const status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !std::filesystem::is_directory(status);
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
  temporary_ = resolved_.string() + fmt::format(".{}.tmp", ::getpid());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
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
  std::signal(SIGINT, on_termination);
  std::signal(SIGTERM, on_termination);
}

}  // namespace vcattn::cli
