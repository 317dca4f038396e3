#pragma once

// One function per command: declares its options and what to run when it is chosen.

#include <CLI/CLI.hpp>

namespace vcattn::cli {

void add_info_command(CLI::App& app);
void add_attend_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_group_command(CLI::App& app);
void add_synth_command(CLI::App& app);
void add_bench_command(CLI::App& app);

}  // namespace vcattn::cli
