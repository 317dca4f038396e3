#pragma once

// PTX text to a Module. A form of an instruction that is not in forms() is refused with its name and line.

#include <string>
#include <string_view>

#include "emulator/ir.hpp"

namespace vcattn::emulator {

/// Errors: LoadError.
Module load_module(std::string_view ptx);
Module load_module_file(std::string const& path);

}  // namespace vcattn::emulator
