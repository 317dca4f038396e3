#pragma once

// Loops over independent items on a bounded number of threads. Which thread runs an item never matters to a result.

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstdint>

namespace vcattn::device::cpu {

/// Calls body(i) for i in [0, count) on at most num_threads threads (0: all cores). Exceptions reach the caller.
template <typename Body>
void parallel_for(std::int32_t num_threads, std::int64_t count, Body const& body) {
  if (count <= 0) return;
  tbb::task_arena arena(num_threads > 0 ? num_threads : tbb::task_arena::automatic);
  arena.execute([&] { tbb::parallel_for(std::int64_t{0}, count, body); });
}

}  // namespace vcattn::device::cpu
