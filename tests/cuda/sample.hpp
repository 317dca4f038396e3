#pragma once

// A part of the cases of the longest tests, for machines on which they are slow.

#include <cstdlib>
#include <string_view>

namespace vcattn::cuda_test {

/// `--every N`: of the cases that ask in_sample(), those with the numbers 0, N, 2 N, ...
inline int sample_step = 1;

inline void read_sample_step(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--every") sample_step = std::atoi(argv[i + 1]);
  }
}

inline bool in_sample() {
  static int cases = 0;
  return cases++ % sample_step == 0;
}

}  // namespace vcattn::cuda_test
