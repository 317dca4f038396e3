#pragma once

// The emulator in the place of a CUDA device: it defines what src/device/cuda/ and the kernel instances of src/attention/sm90a/ define, so
// that the same host code prepares, launches and reads back. Device memory is host memory that the emulator watches.

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/launch.hpp"

namespace vcattn::emulator {

struct EmulatedDevice {
  GlobalMemory memory;
  std::uint64_t seed = 1;
  MatrixArithmetic arithmetic = MatrixArithmetic::exact;
  int multiprocessors = 3;
  std::vector<std::string> ptx_folders;  // searched in this order
  bool count_forms = false, time_products = false;
  Trace trace = {};   // of the launches from now on
  Counters counters;  // of all launches

  void add(Counters const& more);
};

/// The only one; not for several threads at once.
EmulatedDevice& device();

}  // namespace vcattn::emulator
