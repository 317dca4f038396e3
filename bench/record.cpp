#include "record.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

#include "device/cpu/isa.hpp"
#include "vcattn/version.hpp"

namespace vcattn::bench {

namespace {

struct CommandOutput {
  std::string text;
  bool ok = false;
};

CommandOutput run_command(std::string const& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  CommandOutput output;
  std::array<char, 256> chunk;
  while (std::fgets(chunk.data(), static_cast<int>(chunk.size()), pipe) != nullptr) output.text += chunk.data();
  output.ok = pclose(pipe) == 0;
  while (!output.text.empty() && output.text.back() == '\n') output.text.pop_back();
  return output;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string commit() {
  CommandOutput const described = run_command("git -C '" VCATTN_SOURCE_DIR "' describe --always --dirty 2>/dev/null");
  return described.ok ? described.text : "unknown";
}

double load_average() {
  double load = 0.0;
  return getloadavg(&load, 1) == 1 ? load : -1.0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::size_t const middle = values.size() / 2;
  return values.size() % 2 == 1 ? values.at(middle) : 0.5 * (values.at(middle - 1) + values.at(middle));
}

}  // namespace

double Measurement::median_seconds() const { return median(seconds); }

double Measurement::median_cores() const {
  std::vector<double> cores(seconds.size());
  std::transform(cpu_seconds.begin(), cpu_seconds.end(), seconds.begin(), cores.begin(), std::divides<>());
  return median(cores);
}

nlohmann::ordered_json conditions() {
  auto const now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"version", VCATTN_VERSION_STRING},
          {"commit", commit()},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)))},
          {"device", "cpu"},
          {"cpu", cpu_model()},
          {"isa", device::cpu::isa_name(device::cpu::best_isa())},
          {"threads", std::thread::hardware_concurrency()},
          {"load_average_1min", load_average()},
          {"compiler", VCATTN_COMPILER},
          {"build_type", VCATTN_BUILD_TYPE}};
}

nlohmann::ordered_json measure_memory(std::string const& recipe, long long seqlen) {
  CommandOutput const output = run_command(fmt::format("'{}' {} {}", VCATTN_BENCH_MEMORY, recipe, seqlen));
  if (!output.ok) throw std::runtime_error("vcattn_bench_memory must succeed, it failed: build that target and run it by hand");
  return nlohmann::ordered_json::parse(output.text);
}

nlohmann::ordered_json to_json(Measurements const& measurements) {
  auto list = nlohmann::ordered_json::array();
  for (auto const& [name, m] : measurements) {
    nlohmann::ordered_json entry{
        {"name", name}, {"median_seconds", m.median_seconds()}, {"median_cores", m.median_cores()}, {"samples_seconds", m.seconds}};
    if (m.flops > 0.0) entry["gflops_per_second"] = m.flops_per_second() * 1e-9;
    list.push_back(entry);
  }
  return list;
}

nlohmann::ordered_json to_json(std::vector<Promise> const& promises) {
  auto list = nlohmann::ordered_json::array();
  for (Promise const& p : promises) {
    list.push_back({{"name", p.name}, {"value", p.value}, {p.at_least ? "at_least" : "below", p.bound}, {"holds", p.holds()}});
  }
  return list;
}

void print(std::vector<Promise> const& promises) {
  for (Promise const& p : promises) {
    fmt::print("{:<58} {:>9.4f}  required {} {:<6} {}\n", p.name, p.value, p.at_least ? ">=" : "< ", p.bound,
               p.holds() ? "holds" : "MISSED");
  }
}

void write_json(nlohmann::ordered_json const& json, std::string const& path) {
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  if (!file.flush()) throw std::runtime_error(path + ": a writable file is required, writing failed; choose another path");
}

}  // namespace vcattn::bench
