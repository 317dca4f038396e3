#pragma once

// The emulator in the place of a CUDA device: cuda_runtime.cpp defines the functions of the CUDA runtime that the project calls, so that
// all host code, compiled as for a GPU, allocates, launches and reads back here. Device memory is host memory that the emulator watches;
// kernels come from PTX files, found by the names under which the host code knows them.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/launch.hpp"

namespace vcattn::emulator {

struct EmulatedDevice {
  GlobalMemory memory;
  std::uint64_t seed = 1;  // of the next launch
  MatrixArithmetic arithmetic = MatrixArithmetic::exact;
  int multiprocessors = 3;
  std::vector<std::string> ptx_folders = {};  // searched in this order; device() begins with the one of the build
  bool count_forms = false, time_products = false;
  Trace trace = {};                           // of the launches from now on
  std::string traced_kernel = {};             // part of its name; empty: all
  Counters counters;                          // of all launches
  std::map<std::string, Counters> by_kernel;  // by the kernel's name without template arguments
};

/// The only one; not for several threads at once.
EmulatedDevice& device();

}  // namespace vcattn::emulator
