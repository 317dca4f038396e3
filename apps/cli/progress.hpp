#pragma once

// A progress bar on stderr for long work; silent unless stderr is a terminal.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace vcattn::cli {

/// Shows done/total, the current stage and the elapsed time, redrawn a few times per second by a thread of its own; erased by the
/// destructor.
class Progress {
 public:
  explicit Progress(std::int64_t total);
  ~Progress();
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  /// Names the work that starts now; `done` of the total are complete.
  void update(std::int64_t done, std::string const& stage);

 private:
  void draw() const;

  std::chrono::steady_clock::time_point const start_ = std::chrono::steady_clock::now();
  std::int64_t const total_;
  std::int64_t done_ = 0;
  std::string stage_;
  bool finished_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread painter_;
};

}  // namespace vcattn::cli
