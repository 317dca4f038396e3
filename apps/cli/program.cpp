#include "program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "commands/commands.hpp"
#include "io/atomic_file.hpp"
#include "parse.hpp"
#include "vcattn/types.hpp"
#include "vcattn/version.hpp"

namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;
constexpr std::string_view kOutOfMemory = "out of memory: use a smaller input, or fewer queries or heads";

/// Never throws: it is the last resort, and stderr may be closed or full.
int report(std::string_view message, int exit_code) noexcept {
  constexpr std::size_t kLongestMessage = 4000;
  try {
    std::string const line = "vcattn: error: " + vcattn::cli::one_line(vcattn::cli::shortened(message, kLongestMessage)) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  } catch (std::exception const&) {
    std::fputs("vcattn: error: out of memory\n", stderr);
  }
  return exit_code;
}

/// Opens /dev/null in place of closed standard streams, whose numbers output files would take otherwise.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) static_cast<void>(::open("/dev/null", O_RDWR));  // takes the lowest free number: fd
  }
}

/// Refuses empty words, which would pass for options that were left out.
void require_no_empty_value(std::span<char* const> words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    std::string_view const word = words[i];
    std::string_view const before = words[i - 1];
    bool const assignment = word.starts_with("--") && word.find('=') == word.size() - 1;  // --option=
    if (!word.empty() && !assignment) continue;
    std::string_view const option = assignment ? word.substr(0, word.size() - 1) : before;
    bool const named = assignment || (i > 1 && before.starts_with('-'));
    throw CLI::ValidationError(named ? std::string(vcattn::cli::shortened(option)) : "argument", "a value required, got ''");
  }
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    require_no_empty_value(std::span(argv, static_cast<std::size_t>(argc)));
    app.parse(argc, argv);
  } catch (CLI::Success const& request) {  // --help, --version
    int const exit_code = app.exit(request);
    return std::cout.flush() ? exit_code : report(vcattn::cli::kStdoutError, kFailure);
  } catch (CLI::ParseError const& error) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      return report(fmt::format("unknown command or option '{}'; see 'vcattn --help'", app.remaining().front()), kUsageError);
    }
    return report(fmt::format("{}; see 'vcattn --help' and 'vcattn COMMAND --help'", error.what()), kUsageError);
  }
  if (std::fflush(stdout) != 0) return report(vcattn::cli::kStdoutError, kFailure);
  return 0;
}

}  // namespace

int vcattn::cli::run_program(int argc, char** argv, std::function<void(CLI::App&)> const& extend) {
  try {
    open_standard_streams();
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
    if (extend) extend(app);
    return run(app, argc, argv);
  } catch (std::bad_alloc const&) {
    return report(kOutOfMemory, kFailure);
  } catch (std::length_error const&) {  // a container that no memory could hold
    return report(kOutOfMemory, kFailure);
  } catch (vcattn::Error const& error) {
    std::string_view const text = error.what();
    bool const names_option = text.find("--no-check-finite") != std::string_view::npos;
    if (error.code() != vcattn::ErrorCode::nonfinite || names_option) return report(text, kFailure);
    return report(std::string(text) + " with --no-check-finite", kFailure);
  } catch (std::exception const& error) {
    return report(error.what(), kFailure);
  }
}
