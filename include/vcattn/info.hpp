#pragma once

// What this build and this machine offer.

#include <string>
#include <vector>

#include "vcattn/types.hpp"

namespace vcattn {

struct RuntimeInfo {
  std::string version;
  std::string compiler;
  std::string cpu_model;                    ///< as the operating system names it, or "unknown"
  std::string isa;                          ///< instruction set that the CPU kernels use here
  std::vector<std::string> available_isas;  ///< those this build has and this processor runs
  int num_threads = 1;                      ///< used where Options::num_threads is 0
  bool cuda_built = false;
  bool cuda_usable = false;  ///< cuda_unavailable_reason() is empty
  std::string cuda_note;     ///< one sentence: what CUDA can do in this build
};

/// Never throws; reads nothing but the identification of processor and GPU.
VCATTN_API RuntimeInfo runtime_info();

}  // namespace vcattn
