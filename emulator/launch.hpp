#pragma once

// Launches of kernels of a PTX module.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "emulator/executor.hpp"

namespace vcattn::emulator {

/// As cudaLaunchConfig_t.
struct LaunchConfig {
  Dim grid, block;
  std::uint32_t shared_bytes = 0;
  std::uint64_t seed = 1;
  MatrixArithmetic arithmetic = MatrixArithmetic::exact;
  std::vector<NamedRange> names = {};
  bool count_forms = false;    // Counters::by_form
  bool time_products = false;  // Counters::matrix_seconds
  Trace trace = {};
};

/// Runs the kernel of that name, or the only one whose name contains it, to its end. parameters: the bytes of its structure. Global memory
/// that the kernel may touch must have been added to `global`. Throws Fault with a report.
Counters launch(Module const& module, std::string const& kernel, LaunchConfig const& config, std::span<std::uint8_t const> parameters,
                GlobalMemory& global);

/// "space::name<...>(...)" of a symbol; the symbol itself where it is none of C++.
std::string demangled(std::string const& symbol);

/// The kernel of that name, or whose name contains `part`. Errors: LoadError unless there is just one.
Kernel const& find_kernel(Module const& module, std::string const& part);

}  // namespace vcattn::emulator
