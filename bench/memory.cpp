// vcattn_bench_memory RECIPE SEQLEN: runs attend() once on one head of 128 channels, in a process of its own, and prints as JSON what it
// needed on top of inputs and output: the process's peak resident set (VmHWM) minus the resident set just before.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>

#include "workload.hpp"

namespace {

/// A "Vm...: N kB" line of /proc/self/status, in bytes.
long long status_bytes(std::string const& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return 1024 * std::stoll(line.substr(key.size() + 1));
  }
  throw std::runtime_error("/proc/self/status has no line " + key + ": this benchmark needs Linux");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    fmt::print(stderr, "two arguments required, got {}: usage {} RECIPE SEQLEN\n", argc - 1, argv[0]);
    return EXIT_FAILURE;
  }
  using namespace vcattn;
  Options const options = recipe_options(parse_recipe(argv[1]));
  bench::Workload workload({std::stoll(argv[2]), 1, 128});
  long long const before = status_bytes("VmRSS");
  attend(workload.problem(), options, workload.output());
  long long const peak = status_bytes("VmHWM");
  fmt::print("{{\"recipe\": \"{}\", \"seqlen\": {}, \"extra_peak_bytes\": {}, \"process_peak_bytes\": {}}}\n", argv[1],
             workload.shape().seqlen, peak - before, peak);
  return EXIT_SUCCESS;
} catch (std::exception const& error) {
  fmt::print(stderr, "{}\n", error.what());
  return EXIT_FAILURE;
}
