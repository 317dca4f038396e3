// vcattn: low-bit attention for video diffusion transformers, from the command line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "commands/commands.hpp"
#include "io/atomic_file.hpp"
#include "parse.hpp"
#include "vcattn/version.hpp"

namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

int report(std::string_view message, int exit_code) {
  fmt::print(stderr, "vcattn: error: {}\n", vcattn::cli::one_line(message));
  return exit_code;
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (CLI::Success const& request) {  // --help, --version
    return app.exit(request);
  } catch (CLI::ParseError const& error) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      return report(fmt::format("unknown command or option '{}'; see 'vcattn --help'", app.remaining().front()), kUsageError);
    }
    return report(fmt::format("{}; see 'vcattn --help' and 'vcattn COMMAND --help'", error.what()), kUsageError);
  }
  if (std::fflush(stdout) != 0) return report("cannot write to standard output: free space, or close no pipe early", kFailure);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    vcattn::cli::remove_temporary_files_on_signal();
    CLI::App app("Low-bit attention for video diffusion transformers", "vcattn");
    app.set_version_flag("--version", VCATTN_VERSION_STRING);
    app.require_subcommand(1);
    vcattn::cli::add_info_command(app);
    vcattn::cli::add_attend_command(app);
    vcattn::cli::add_compare_command(app);
    vcattn::cli::add_group_command(app);
    vcattn::cli::add_synth_command(app);
    vcattn::cli::add_bench_command(app);
    return run(app, argc, argv);
  } catch (std::bad_alloc const&) {
    return report("out of memory: use a smaller input, or fewer queries or heads", kFailure);
  } catch (std::exception const& error) {
    return report(error.what(), kFailure);
  }
}
