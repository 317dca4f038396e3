#pragma once

// PTX files by the kernels in them.

#include <string>
#include <vector>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

struct FoundKernel {
  Module const& module;
  std::string symbol;  // there
};

/// The kernel of that symbol in the first of the folders that has it. Errors: LoadError.
FoundKernel find_kernel(std::string const& symbol, std::vector<std::string> const& folders);

}  // namespace vcattn::emulator
