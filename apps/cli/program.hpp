#pragma once

// The program: everything but main().

#include <CLI/CLI.hpp>
#include <functional>

namespace vcattn::cli {

/// Returns the exit code. extend: adds to the commands and their options.
int run_program(int argc, char** argv, std::function<void(CLI::App&)> const& extend = {});

}  // namespace vcattn::cli
