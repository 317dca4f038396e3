#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace vcattn::cli {

namespace {
constexpr std::int64_t kBarColumns = 24;
constexpr auto kRedrawInterval = std::chrono::milliseconds(200);
constexpr char const* kEraseLine = "\r\033[K";
}  // namespace

Progress::Progress(std::int64_t total) : total_(std::max<std::int64_t>(total, 1)) {
  if (::isatty(STDERR_FILENO) == 0) return;
  painter_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kRedrawInterval, [this] { return finished_; })) draw();
  });
}

Progress::~Progress() {
  if (!painter_.joinable()) return;
  {
    std::lock_guard const lock(mutex_);
    finished_ = true;
  }
  wake_.notify_one();
  painter_.join();
  std::fputs(kEraseLine, stderr);
}

void Progress::update(std::int64_t done, std::string const& stage) {
  std::lock_guard const lock(mutex_);
  done_ = std::clamp<std::int64_t>(done, 0, total_);
  stage_ = stage;
}

void Progress::draw() const {
  std::int64_t const filled = kBarColumns * done_ / total_;
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  // Not fmt::print, which throws when the terminal is gone.
  std::string const line =
      fmt::format("{}[{:#<{}}{:.<{}}] {}/{} {:.0f} s {}", kEraseLine, "", filled, "", kBarColumns - filled, done_, total_, seconds, stage_);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace vcattn::cli
