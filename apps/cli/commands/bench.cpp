#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "arguments.hpp"
#include "attention_run.hpp"
#include "commands/commands.hpp"
#include "evaluate.hpp"
#include "inputs.hpp"
#include "io/elements.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "synth/random.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/info.hpp"

namespace vcattn::cli {
namespace {

using nlohmann::ordered_json;

struct Shape {
  std::int64_t batch, seqlen_q, seqlen_kv, num_heads, head_dim;
};

struct Case {
  std::string_view name;
  Shape shape;
  std::string_view description;
};

// Per-head sizes of the models that the library is made for; the first one is small enough for every machine.
constexpr std::array<Case, 9> kCases{{{"4096x4x128", {1, 4096, 4096, 4, 128}, "four heads, the default"},
                                      {"32760x1x128", {1, 32760, 32760, 1, 128}, "Wan2.2 A14B at 480p, one head"},
                                      {"wan22-cross", {1, 32760, 512, 1, 128}, "Wan2.2 cross-attention to text, one head"},
                                      {"wan22-5b", {1, 27280, 27280, 1, 128}, "Wan2.2 TI2V-5B at 704p, one head"},
                                      {"longcat-480p", {1, 37440, 37440, 1, 128}, "LongCat-Video at 480p, one head"},
                                      {"hunyuan15-480p", {1, 49290, 49290, 1, 128}, "HunyuanVideo-1.5 at 480p, one head"},
                                      {"minimax-h3", {1, 73397, 73397, 1, 128}, "MiniMax-H3, one head"},
                                      {"wan22-720p", {1, 75600, 75600, 1, 128}, "Wan2.2 A14B at 720p, one head"},
                                      {"hunyuan15-720p", {1, 111600, 111600, 1, 128}, "HunyuanVideo-1.5 at 720p, one head"}}};

constexpr std::int64_t kFewestRepeats = 3;
constexpr std::int64_t kMostRepeats = 10;
constexpr double kEnoughSeconds = 5.0;          // no further repeat after this many seconds, where --repeats is not given
constexpr std::int64_t kGpuRepeats = 20;        // where --repeats is not given
constexpr double kGpuSampleSeconds = 0.02;      // calls fill a sample of about this length, so that the timer does not show
constexpr std::int64_t kMostGpuCalls = 1000;    // in one sample
constexpr std::int64_t kAccuracyQueries = 256;  // query rows per head that are compared with exact attention
constexpr std::uint64_t kInputSeed = 20260915;

constexpr std::string_view kDefaultRecipes = "exact,vc8-paper,vc8,vc8s";

struct BenchArguments {
  std::string case_name, shape, recipes, repeats = "0";
  bool list = false;
  RunArguments run;
  JsonArgument json;
};

Shape parse_shape(std::string_view text) {
  auto const extents = parse_integers("--shape", text, 5, 1, std::int64_t{1} << 24);
  return {extents[0], extents[1], extents[2], extents[3], extents[4]};
}

Case find_case(BenchArguments const& arguments) {
  if (!arguments.case_name.empty() && !arguments.shape.empty()) {
    throw Error(ErrorCode::invalid_argument, "one of --case and --shape required, got both");
  }
  if (!arguments.shape.empty()) return {arguments.shape, parse_shape(arguments.shape), "given by --shape"};
  if (arguments.case_name.empty()) return kCases.front();
  auto const found = std::ranges::find(kCases, arguments.case_name, &Case::name);
  if (found == kCases.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--case: a name of 'vcattn bench --list' required, got '{}'", arguments.case_name));
  }
  return *found;
}

/// bf16 [batch, seqlen, num_heads, head_dim], independent N(0, 1).
HostTensor random_tensor(Shape const& shape, std::int64_t seqlen, std::uint64_t stream) {
  RandomStream const random(kInputSeed, stream);
  HostTensor tensor{DType::bf16, {shape.batch, seqlen, shape.num_heads, shape.head_dim}, {}};
  auto const elements = static_cast<std::size_t>(shape.batch * seqlen * shape.num_heads * shape.head_dim);
  tensor.data.resize(elements * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint16_t const code = encode_bf16(random.normal(i));
    std::memcpy(tensor.data.data() + i * sizeof code, &code, sizeof code);
  }
  return tensor;
}

/// Seconds of each repeat.
struct Scope {
  std::vector<double> seconds;
  std::int64_t calls = 1;  ///< whose mean each sample is
};

/// total: the complete call, on a GPU in one piece. It and preparation are empty where that is on the CPU and attention on a GPU.
struct Samples {
  Scope prepare, attention, total;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  std::size_t const middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// 4 Sq Sk D operations per head: two products, a multiplication and an addition each.
double operations(Shape const& shape) {
  return 4.0 * static_cast<double>(shape.batch * shape.num_heads) * static_cast<double>(shape.seqlen_q) *
         static_cast<double>(shape.seqlen_kv) * static_cast<double>(shape.head_dim);
}

/// Repeats preparation and attention and gives the last output. The first run, which warms caches and threads, is not among the samples.
std::vector<float> time_on_cpu(Problem const& problem, Options const& options, std::int64_t repeats, Samples& samples) {
  std::int64_t const most = repeats != 0 ? repeats : kMostRepeats;
  std::vector<float> output = run_recipe(problem, options, {}).output;
  double spent = 0;
  for (std::int64_t i = 0; i < most; ++i) {
    if (repeats == 0 && i >= kFewestRepeats && spent > kEnoughSeconds) break;
    Run run = run_recipe(problem, options, {});
    samples.prepare.seconds.push_back(run.seconds.prepare);
    samples.attention.seconds.push_back(run.seconds.attention);
    samples.total.seconds.push_back(run.seconds.both());
    spent += run.seconds.both();
    output = std::move(run.output);
  }
  return output;
}

/// How many calls make a sample, told by the second of two calls: the first one warms the GPU.
template <typename Stage>
std::int64_t calls_per_sample(Stage const& stage) {
  stage(1);
  return static_cast<std::int64_t>(
      std::ceil(kGpuSampleSeconds / std::max(stage(1), kGpuSampleSeconds / static_cast<double>(kMostGpuCalls))));
}

/// Repeats the stages and gives the last output.
std::vector<float> time_on_gpu(Problem const& problem, Options const& options, Devices devices, std::int64_t repeats, Samples& samples) {
  std::vector<float> output;
  AttentionRun run(problem, options, devices, output_view(problem.q, output));
  auto const prepare = [&](std::int64_t calls) { return run.prepare(calls); };
  auto const attention = [&](std::int64_t calls) { return run.attention(calls); };
  auto const attend = [&](std::int64_t calls) { return run.attend(calls); };
  bool const complete = devices.preparation == Device::cuda;
  run.prepare();
  samples.attention.calls = calls_per_sample(attention);
  if (complete) {
    samples.prepare.calls = calls_per_sample(prepare);
    samples.total.calls = calls_per_sample(attend);
  }
  for (std::int64_t i = 0; i < (repeats != 0 ? repeats : kGpuRepeats); ++i) {
    if (complete) samples.prepare.seconds.push_back(prepare(samples.prepare.calls));
    samples.attention.seconds.push_back(attention(samples.attention.calls));
    if (complete) samples.total.seconds.push_back(attend(samples.total.calls));
  }
  run.fetch();
  return output;
}

struct Measurement {
  RecipeResult result;
  Samples samples;
};

ordered_json measurement_json(Measurement const& measurement, Shape const& shape) {
  ordered_json record{{"recipe", measurement.result.name()}};
  if (!measurement.result.error.empty()) {
    record["error"] = measurement.result.error;
    return record;
  }
  auto const scope_json = [](Scope const& scope) {
    return ordered_json{{"median_seconds", median(scope.seconds)}, {"samples_seconds", scope.seconds}, {"calls_per_sample", scope.calls}};
  };
  auto const scope_with_speed = [&](Scope const& scope) {
    ordered_json figures = scope_json(scope);
    figures["tflops"] = operations(shape) / median(scope.seconds) * 1e-12;
    return figures;
  };
  Samples const& samples = measurement.samples;
  record["attention"] = scope_with_speed(samples.attention);
  if (!samples.total.seconds.empty()) {
    record["prepare+attention"] = scope_with_speed(samples.total);
    record["prepare"] = scope_json(samples.prepare);
  }
  add_error_figures(record, measurement.result);
  record["options"] = options_json(measurement.result.options);
  return record;
}

ordered_json conditions_json(Case const& chosen, BenchArguments const& arguments, Options const& options) {
  RuntimeInfo const info = runtime_info();
  Shape const& shape = chosen.shape;
  ordered_json record{
      {"case", chosen.name},
      {"shape",
       {{"batch", shape.batch},
        {"seqlen_q", shape.seqlen_q},
        {"seqlen_kv", shape.seqlen_kv},
        {"num_heads", shape.num_heads},
        {"head_dim", shape.head_dim}}},
      {"input", "independent N(0, 1), bf16"},
      {"accuracy", fmt::format("output of the last repeat against exact attention in FP64, at most {} evenly spaced query rows per head",
                               kAccuracyQueries)},
      {"device", arguments.run.device},
      {"prepared_on", device_name(parse_devices(arguments.run).preparation)},
      {"version", info.version},
      {"compiler", info.compiler},
      {"cpu_model", info.cpu_model},
      {"isa", info.isa},
      {"threads", options.num_threads == 0 ? info.num_threads : options.num_threads}};
  if (parse_device(arguments.run.device) == Device::cuda) record["cuda_device"] = cuda_device_description();
  return record;
}

void print_measurement(Measurement const& measurement, Shape const& shape, Device device) {
  RecipeResult const& result = measurement.result;
  if (!result.error.empty()) {
    fmt::print("{:<10} {}\n", result.name(), one_line(refusal_text(result, device)));
    return;
  }
  Samples const& samples = measurement.samples;
  double const attention = median(samples.attention.seconds);
  double const tera = operations(shape) / attention * 1e-12;
  std::string const error = percent(pooled(result.heads).rel_l2());
  std::size_t const repeats = samples.attention.seconds.size();
  if (device == Device::cuda) {
    auto const ms = [](Scope const& scope) { return scope.seconds.empty() ? "-" : fmt::format("{:.4f}", 1e3 * median(scope.seconds)); };
    fmt::print("{:<10} {:>7} {:>11} {:>13} {:>11} {:>9.1f} {:>11}\n", result.name(), repeats, ms(samples.prepare), ms(samples.attention),
               ms(samples.total), tera, error);
    return;
  }
  fmt::print("{:<10} {:>7} {:>11.4f} {:>11.4f} {:>11.4f} {:>9.4f} {:>11}\n", result.name(), repeats, median(samples.prepare.seconds),
             attention, median(samples.total.seconds), tera, error);
}

void list_cases(JsonArgument const& argument) {
  JsonSink json(argument);
  ordered_json record = ordered_json::array();
  for (Case const& entry : kCases) {
    Shape const& shape = entry.shape;
    record.push_back({{"case", entry.name},
                      {"shape", {shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.num_heads, shape.head_dim}},
                      {"description", entry.description}});
    if (!argument.to_stdout()) {
      fmt::print("{:<15} {},{},{},{},{}  {}\n", entry.name, shape.batch, shape.seqlen_q, shape.seqlen_kv, shape.num_heads, shape.head_dim,
                 entry.description);
    }
  }
  json.write(record);
}

std::int64_t parse_repeats(BenchArguments const& arguments) { return parse_integer("--repeats", arguments.repeats, 0, 1000); }

void measure(Measurement& measurement, Problem const& problem, BenchArguments const& arguments, QuerySample const& sample,
             std::vector<float> const& reference) {
  RecipeResult& result = measurement.result;
  if (!result.error.empty()) return;
  Devices const devices = parse_devices(arguments.run);
  std::int64_t const repeats = parse_repeats(arguments);
  std::vector<float> const output = devices.attention == Device::cuda
                                        ? time_on_gpu(problem, result.options, devices, repeats, measurement.samples)
                                        : time_on_cpu(problem, result.options, repeats, measurement.samples);
  result.heads = error_per_head(sample_rows(output, problem, sample), reference, problem.q.batch(), sample.count, problem.q.num_heads(),
                                problem.q.head_dim());
}

std::vector<Measurement> planned_measurements(BenchArguments const& arguments) {
  std::vector<Measurement> measurements;
  for (Recipe const recipe : parse_recipes(arguments.recipes.empty() ? kDefaultRecipes : arguments.recipes)) {
    Measurement measurement;
    measurement.result.recipe = recipe;
    measurement.result.options = resolve_options(recipe, arguments.run);
    measurement.result.options.check_finite = false;  // the inputs are finite; the check is not part of what is timed
    measurements.push_back(std::move(measurement));
  }
  return measurements;
}

void print_measurements(std::vector<Measurement> const& measurements, Shape const& shape, ordered_json const& conditions, Device device) {
  auto const text = [&conditions](char const* key) { return conditions.at(key).get<std::string>(); };
  if (device == Device::cuda) {
    fmt::print("{} on {}; medians, TFLOP/s of attention alone; rel_l2 on at most {} query rows per head\n", text("case"),
               text("cuda_device"), kAccuracyQueries);
    fmt::print("{:<10} {:>7} {:>11} {:>13} {:>11} {:>9} {:>11}\n", "recipe", "repeats", "prepare ms", "attention ms", "both ms", "TFLOP/s",
               "rel_l2");
  } else {
    fmt::print("{} on {} ({}), {} threads; medians in seconds; rel_l2 on at most {} query rows per head\n", text("case"), text("cpu_model"),
               text("isa"), conditions.at("threads").get<int>(), kAccuracyQueries);
    fmt::print("{:<10} {:>7} {:>11} {:>11} {:>11} {:>9} {:>11}\n", "recipe", "repeats", "prepare", "attention", "both", "TFLOP/s",
               "rel_l2");
  }
  for (Measurement const& measurement : measurements) print_measurement(measurement, shape, device);
}

void run_bench(BenchArguments const& arguments) {
  if (arguments.list) return list_cases(arguments.json);
  Case const chosen = find_case(arguments);
  Shape const& shape = chosen.shape;
  std::vector<Measurement> measurements = planned_measurements(arguments);
  parse_repeats(arguments);
  Devices const devices = usable_devices(arguments.run);
  JsonSink json(arguments.json);
  HostTensor const q = random_tensor(shape, shape.seqlen_q, 0);
  HostTensor const k = random_tensor(shape, shape.seqlen_kv, 1);
  HostTensor const v = random_tensor(shape, shape.seqlen_kv, 2);
  Problem problem;
  problem.q = q.view(Layout::nhd);
  problem.k = k.view(Layout::nhd);
  problem.v = v.view(Layout::nhd);
  Options const exact = exact_options(arguments.run);
  require_support(problem, exact, {});
  std::vector<std::reference_wrapper<RecipeResult>> results;
  for (Measurement& measurement : measurements) results.emplace_back(measurement.result);
  require_any_support(results, problem, devices, !arguments.recipes.empty(), "case");
  {
    Progress progress(static_cast<std::int64_t>(measurements.size()) + 1);
    progress.update(0, "exact reference in FP64");
    QuerySample const sample = evenly_spaced(shape.seqlen_q, kAccuracyQueries);
    Problem sampled = problem;
    sampled.q = sample_queries(problem.q, sample);
    std::vector<float> const reference = run_recipe(sampled, exact, {}).output;
    for (std::size_t i = 0; i < measurements.size(); ++i) {
      progress.update(static_cast<std::int64_t>(i) + 1, measurements[i].result.name());
      measure(measurements[i], problem, arguments, sample, reference);
    }
  }
  ordered_json record = conditions_json(chosen, arguments, exact);
  record["results"] = ordered_json::array();
  for (Measurement const& measurement : measurements) record["results"].push_back(measurement_json(measurement, shape));
  json.write(record);
  if (arguments.json.to_stdout()) return;
  print_measurements(measurements, shape, record, devices.attention);
}

}  // namespace

void add_bench_command(CLI::App& app) {
  auto const arguments = std::make_shared<BenchArguments>();
  CLI::App* const command = app.add_subcommand("bench", "Speed of recipes on this machine, with the accuracy of the same run");
  command->add_flag("--list", arguments->list, "list the named cases");
  command->add_option("--case", arguments->case_name, "named case, see --list")->type_name("NAME");
  command->add_option("--shape", arguments->shape, "any other size")->type_name("B,Sq,Sk,H,D");
  command->add_option("--recipes", arguments->recipes, "recipes to run; default exact,vc8-paper,vc8,vc8s")->type_name("A,B,...");
  command->add_option("--repeats", arguments->repeats, "timed repeats; default 3 to 10, as time allows, on a GPU 20")->type_name("N");
  add_run_options(*command, arguments->run);
  add_prepare_on_option(*command, arguments->run);
  add_json_option(*command, arguments->json);
  command->callback([arguments] { run_bench(*arguments); });
}

}  // namespace vcattn::cli
