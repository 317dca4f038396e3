#pragma once

// What one run of vcattn_bench_micro says: samples, the ratios that the project promises, and the conditions they were measured under.

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace vcattn::bench {

/// One benchmark, by repetition: wall-clock seconds, and the seconds that all threads of the process spent on a core.
struct Measurement {
  std::vector<double> seconds, cpu_seconds;
  double flops = 0.0;  // floating-point operations of one repetition, 0: no rate

  double median_seconds() const;
  /// Median number of cores in use: well below the number of threads when something else ran on the machine.
  double median_cores() const;
  double flops_per_second() const { return flops / median_seconds(); }
};
using Measurements = std::map<std::string, Measurement>;

/// A promise about a ratio of two figures.
struct Promise {
  std::string name;
  double value = 0.0;
  double bound = 0.0;
  bool at_least = true;  // false: value must stay below the bound

  bool holds() const { return at_least ? value >= bound : value < bound; }
};

/// Processor, instruction set, threads, load, compiler, version, commit, date.
nlohmann::ordered_json conditions();

/// extra_peak_bytes of vcattn_bench_memory for one head.
nlohmann::ordered_json measure_memory(std::string const& recipe, long long seqlen);

nlohmann::ordered_json to_json(Measurements const& measurements);
nlohmann::ordered_json to_json(std::vector<Promise> const& promises);

/// Prints the promises as a table.
void print(std::vector<Promise> const& promises);

/// Errors: std::runtime_error when the file cannot be written.
void write_json(nlohmann::ordered_json const& json, std::string const& path);

}  // namespace vcattn::bench
