#pragma once

// Loops over independent items on a bounded number of threads. Which thread runs an item never matters to a result.

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>

namespace vcattn::device::cpu {

/// Threads of an arena that is asked for num_threads: all cores for 0 or more than there are, about which oneTBB would warn on stderr.
inline int concurrency(std::int32_t num_threads) {
  int const cores = tbb::this_task_arena::max_concurrency();
  return num_threads > 0 ? std::min(num_threads, cores) : cores;
}

/// Calls body(i) for i in [0, count) on at most num_threads threads (0, or more than there are cores: all cores). Exceptions reach the
/// caller.
template <typename Body>
void parallel_for(std::int32_t num_threads, std::int64_t count, Body const& body) {
  if (count <= 0) return;
  tbb::task_arena arena(concurrency(num_threads));
  arena.execute([&] { tbb::parallel_for(std::int64_t{0}, count, body); });
}

}  // namespace vcattn::device::cpu
