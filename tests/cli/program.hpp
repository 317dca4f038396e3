#pragma once

// Runs the built command line program.

#include <optional>
#include <string>
#include <vector>

namespace vcattn::test {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal where a signal ended it
  std::string out, err;
};

Outcome run_program(std::vector<std::string> const& arguments);

/// While one exists, programs see no GPU, on whatever machine they run.
class HiddenGpus {
 public:
  HiddenGpus();
  ~HiddenGpus();
  HiddenGpus(HiddenGpus const&) = delete;
  HiddenGpus& operator=(HiddenGpus const&) = delete;

 private:
  std::optional<std::string> before_;
};

/// The same with stderr as a terminal, whose text is `err`.
Outcome run_program_on_terminal(std::vector<std::string> const& arguments);

/// `script` for sh, where "$@" is the program and its arguments; the exit code of the script.
int run_in_shell(std::string const& script, std::vector<std::string> const& arguments);

}  // namespace vcattn::test
