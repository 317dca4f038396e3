#include "cli/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace vcattn::test {
namespace {

constexpr char const* kVisibleGpus = "CUDA_VISIBLE_DEVICES";

/// The ends of a channel that the program writes into.
struct Channel {
  int read_end = -1, write_end = -1;
};

Channel make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
  return {ends[0], ends[1]};
}

Channel make_terminal() {
  int const controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (controller < 0 || ::grantpt(controller) != 0 || ::unlockpt(controller) != 0) throw std::runtime_error("no pseudo terminal");
  return {controller, ::open(::ptsname(controller), O_RDWR | O_NOCTTY)};
}

[[noreturn]] void become_program(std::vector<std::string> const& arguments, Channel const& out, Channel const& err) {
  ::dup2(out.write_end, STDOUT_FILENO);
  ::dup2(err.write_end, STDERR_FILENO);
  for (int const end : {out.read_end, out.write_end, err.read_end, err.write_end}) ::close(end);
  std::vector<char*> argv{const_cast<char*>(VCATTN_CLI_PATH)};
  for (std::string const& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(VCATTN_CLI_PATH, argv.data());
  ::_exit(127);
}

/// Reads both channels until the program has closed them.
void drain(Channel const& out, Channel const& err, Outcome& outcome) {
  std::array<pollfd, 2> polled{{{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}}};
  std::array<std::string*, 2> const texts{&outcome.out, &outcome.err};
  std::array<char, 4096> buffer;
  int open_channels = 2;
  while (open_channels > 0) {
    if (::poll(polled.data(), polled.size(), -1) < 0) throw std::runtime_error("poll failed");
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      ssize_t const got = ::read(polled[i].fd, buffer.data(), buffer.size());
      if (got > 0) {
        texts[i]->append(buffer.data(), static_cast<std::size_t>(got));
      } else {  // end of a pipe, or EIO at the end of a terminal
        polled[i].fd = -1;
        --open_channels;
      }
    }
  }
}

Outcome run(std::vector<std::string> const& arguments, Channel const& out, Channel const& err) {
  pid_t const child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become_program(arguments, out, err);
  ::close(out.write_end);
  ::close(err.write_end);
  Outcome outcome;
  drain(out, err, outcome);
  ::close(out.read_end);
  ::close(err.read_end);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace

Outcome run_program(std::vector<std::string> const& arguments) { return run(arguments, make_pipe(), make_pipe()); }

int run_in_shell(std::string const& script, std::vector<std::string> const& arguments) {
  std::vector<std::string> words{"sh", "-c", script, "sh", VCATTN_CLI_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t const child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    for (int const number : {SIGHUP, SIGTERM, SIGPIPE}) std::signal(number, SIG_DFL);  // a caller such as nohup may have them ignored
    ::execv("/bin/sh", argv.data());
    ::_exit(127);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

HiddenGpus::HiddenGpus() {
  if (char const* const before = std::getenv(kVisibleGpus)) before_ = before;
  ::setenv(kVisibleGpus, "-1", 1);
}

HiddenGpus::~HiddenGpus() {
  if (before_) {
    ::setenv(kVisibleGpus, before_->c_str(), 1);
  } else {
    ::unsetenv(kVisibleGpus);
  }
}

Outcome run_program_on_terminal(std::vector<std::string> const& arguments) { return run(arguments, make_pipe(), make_terminal()); }

}  // namespace vcattn::test
