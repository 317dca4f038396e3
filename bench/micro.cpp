// Stages on the CPU beside the matrix product they are made of, in one run: medians, and the ratios that the project promises (README.md
// here).

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/gemm.hpp"
#include "device/cpu/parallel.hpp"
#include "record.hpp"
#include "vcattn/grouping.hpp"
#include "workload.hpp"

namespace vcattn::bench {
namespace {

constexpr int kRepetitions = 10;
constexpr Shape kSquareShape{4096, 4, 128};  // attention against the matrix product
constexpr Shape kVideoShape{32760, 1, 128};  // one head of Wan2.2 A14B at 480p: grouping against attention
constexpr std::int32_t kVideoClusters = 64;
constexpr std::int64_t kMemorySeqlen = 8192;  // and twice that

constexpr double kMinGemmShare = 0.40;
constexpr double kMaxGroupingShare = 0.03;
// Twice the rows may need twice the memory and a little more (allocators round up); S x S would need four times as much.
constexpr double kMaxMemoryGrowth = 2.2;

Workload& workload(Shape const& shape) {
  static Workload square(kSquareShape), video(kVideoShape);
  return shape.seqlen == kSquareShape.seqlen ? square : video;
}

std::string shape_name(Shape const& shape) { return fmt::format("{}x{}x{}", shape.seqlen, shape.num_heads, shape.head_dim); }

void set_flops(benchmark::State& state, double flops) {
  state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

/// The yardstick: independent square products of the library's own kernel on every core.
void run_gemm(benchmark::State& state, std::int64_t n) {
  constexpr std::int64_t kProductsPerCore = 4;
  auto const products = kProductsPerCore * static_cast<std::int64_t>(std::thread::hardware_concurrency());
  auto const elements = static_cast<std::size_t>(n * n);
  std::vector<float> const a(elements, 0.5f), b(elements, 0.25f);
  std::vector<std::vector<float>> c(static_cast<std::size_t>(products), std::vector<float>(elements));
  auto const gemm = device::cpu::gemm_kernels(device::cpu::best_isa()).nt_f32;
  for (auto _ : state) {
    device::cpu::parallel_for(0, products,
                              [&](std::int64_t i) { gemm(n, n, n, a.data(), n, b.data(), n, c[static_cast<std::size_t>(i)].data(), n); });
  }
  set_flops(state, 2.0 * std::pow(static_cast<double>(n), 3) * static_cast<double>(products));
}

void run_attention(benchmark::State& state, Shape const& shape, Recipe recipe) {
  Workload& w = workload(shape);
  Prepared const prepared = prepare(w.problem(), recipe_options(recipe));
  for (auto _ : state) attention(prepared, w.output());
  set_flops(state, shape.attention_flops());
}

void run_attend(benchmark::State& state, Shape const& shape, Recipe recipe) {
  Workload& w = workload(shape);
  for (auto _ : state) attend(w.problem(), recipe_options(recipe), w.output());
  set_flops(state, shape.attention_flops());
}

void run_prepare(benchmark::State& state, Shape const& shape, Recipe recipe, GroupOrder order) {
  Workload const& w = workload(shape);
  Options options = recipe_options(recipe);
  options.order = order;
  for (auto _ : state) benchmark::DoNotOptimize(prepare(w.problem(), options).size_bytes());
}

void run_grouping(benchmark::State& state, Shape const& shape, GroupOrder order) {
  Workload const& w = workload(shape);
  Options options = recipe_options(Recipe::vc8);
  options.clusters = kVideoClusters;
  options.order = order;
  for (auto _ : state) benchmark::DoNotOptimize(group_values(w.problem().v, options).permutation.data());
}

std::string attention_name(Shape const& shape, Recipe recipe) {
  return fmt::format("attention/{}/{}", recipe_name(recipe), shape_name(shape));
}

void register_benchmarks() {
  auto const add = [](std::string const& name, auto run) {
    // One iteration per repetition: each takes long enough to be timed by itself, and repetitions of all benchmarks can be interleaved.
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->Iterations(1)
        ->Repetitions(kRepetitions)
        ->MeasureProcessCPUTime()
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  using State = benchmark::State;
  add("gemm/1024", [](State& s) { run_gemm(s, 1024); });
  for (Recipe const recipe : {Recipe::exact, Recipe::vc8}) {
    add(attention_name(kSquareShape, recipe), [=](State& s) { run_attention(s, kSquareShape, recipe); });
    add(attention_name(kVideoShape, recipe), [=](State& s) { run_attention(s, kVideoShape, recipe); });
  }
  add("attend/vc8/" + shape_name(kSquareShape), [](State& s) { run_attend(s, kSquareShape, Recipe::vc8); });
  add("prepare/vc8/sequence/" + shape_name(kSquareShape),
      [](State& s) { run_prepare(s, kSquareShape, Recipe::vc8, GroupOrder::sequence); });
  add("grouping/label/" + shape_name(kVideoShape), [](State& s) { run_grouping(s, kVideoShape, GroupOrder::label); });
  add("grouping/chain_sorted/" + shape_name(kVideoShape), [](State& s) { run_grouping(s, kVideoShape, GroupOrder::chain_sorted); });
}

class CollectingReporter : public benchmark::ConsoleReporter {
 public:
  CollectingReporter() : ConsoleReporter(OO_Tabular) {}
  void ReportRuns(std::vector<Run> const& runs) override {
    for (Run const& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      Measurement& m = measurements_[run.run_name.function_name];
      double const seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
      m.seconds.push_back(seconds);
      m.cpu_seconds.push_back(run.cpu_accumulated_time / static_cast<double>(run.iterations));
      if (auto const rate = run.counters.find("flops"); rate != run.counters.end()) m.flops = rate->second.value * seconds;
    }
    ConsoleReporter::ReportRuns(runs);
  }
  Measurements const& measurements() const { return measurements_; }

 private:
  Measurements measurements_;
};

/// Promises about the benchmarks that a filter left in.
std::vector<Promise> speed_promises(Measurements const& measured) {
  std::vector<Promise> promises;
  auto const gemm = measured.find("gemm/1024");
  auto const grouping = measured.find("grouping/label/" + shape_name(kVideoShape));
  for (Recipe const recipe : {Recipe::exact, Recipe::vc8}) {
    if (auto const a = measured.find(attention_name(kSquareShape, recipe)); a != measured.end() && gemm != measured.end()) {
      promises.push_back(
          {a->first + " rate / gemm/1024 rate", a->second.flops_per_second() / gemm->second.flops_per_second(), kMinGemmShare});
    }
    if (auto const a = measured.find(attention_name(kVideoShape, recipe)); a != measured.end() && grouping != measured.end()) {
      promises.push_back(
          {"k-means, 64 clusters / " + a->first, grouping->second.median_seconds() / a->second.median_seconds(), kMaxGroupingShare, false});
    }
  }
  return promises;
}

double relative_l2(std::vector<float> const& o, std::vector<float> const& expected) {
  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < o.size(); ++i) {
    error += std::pow(static_cast<double>(o[i]) - static_cast<double>(expected[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / norm);
}

/// Fidelity of what was timed, on the inputs that were timed.
nlohmann::ordered_json measure_accuracy() {
  Workload& w = workload(kSquareShape);
  attend(w.problem(), recipe_options(Recipe::exact), w.output());
  std::vector<float> const exact = w.output_values();
  attend(w.problem(), recipe_options(Recipe::vc8), w.output());
  return {{"recipe", "vc8"}, {"against", "exact"}, {"shape", shape_name(kSquareShape)}, {"rel_l2", relative_l2(w.output_values(), exact)}};
}

nlohmann::ordered_json describe_recipe(Recipe recipe) {
  nlohmann::ordered_json description;
  for (auto const& [key, value] : describe_options(recipe_options(recipe))) description[key] = value;
  return description;
}

void write_record(Measurements const& measurements, std::vector<Promise> promises, nlohmann::ordered_json const& start_conditions,
                  std::string const& path) {
  auto memory = nlohmann::ordered_json::array();
  for (std::string const recipe : {"exact", "vc8"}) {
    auto const once = measure_memory(recipe, kMemorySeqlen);
    auto const twice = measure_memory(recipe, 2 * kMemorySeqlen);
    memory.insert(memory.end(), {once, twice});
    promises.push_back({fmt::format("peak memory of attend/{} at {} / at {} rows", recipe, 2 * kMemorySeqlen, kMemorySeqlen),
                        twice.at("extra_peak_bytes").get<double>() / once.at("extra_peak_bytes").get<double>(), kMaxMemoryGrowth, false});
  }
  print(promises);
  write_json({{"conditions", start_conditions},
              {"options", {{"vc8", describe_recipe(Recipe::vc8)}}},
              {"promises", to_json(promises)},
              {"benchmarks", to_json(measurements)},
              {"memory", memory},
              {"accuracy", measure_accuracy()}},
             path);
  fmt::print("wrote {}\n", path);
}

/// Removes "--record=FILE" from the arguments and returns FILE, "" without.
std::string take_record_path(std::vector<char*>& arguments) {
  constexpr char kFlag[] = "--record=";
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    if (std::strncmp(*it, kFlag, std::strlen(kFlag)) != 0) continue;
    std::string const path = *it + std::strlen(kFlag);
    arguments.erase(it);
    return path;
  }
  return "";
}

int run(int argc, char** argv) {
  // Interleaved repetitions spread a disturbance of the machine over all benchmarks instead of spoiling one.
  std::string interleave = "--benchmark_enable_random_interleaving=true";
  std::vector<char*> arguments(argv, argv + argc);
  std::string const record_path = take_record_path(arguments);
  arguments.insert(arguments.begin() + 1, interleave.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return EXIT_FAILURE;

  nlohmann::ordered_json const start_conditions = conditions();
  register_benchmarks();
  CollectingReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  std::vector<Promise> const promises = speed_promises(reporter.measurements());
  if (record_path.empty()) {
    print(promises);
  } else {
    write_record(reporter.measurements(), promises, start_conditions, record_path);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace vcattn::bench

int main(int argc, char** argv) try { return vcattn::bench::run(argc, argv); } catch (std::exception const& error) {
  fmt::print(stderr, "{}\n", error.what());
  return EXIT_FAILURE;
}
