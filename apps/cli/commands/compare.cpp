#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "arguments.hpp"
#include "commands/commands.hpp"
#include "evaluate.hpp"
#include "inputs.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "report/report.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cli {
namespace {

using nlohmann::ordered_json;

struct CompareArguments {
  InputArguments input;
  RunArguments run;
  JsonArgument json;
  std::string recipes, queries = "0", html;
};

void evaluate(RecipeResult& result, Problem const& problem, Devices devices, std::vector<float> const& reference) {
  if (!result.error.empty()) return;
  Run const run = run_recipe(problem, result.options, devices);
  result.seconds = run.seconds;
  result.value_energy_removed = run.value_energy_removed;
  TensorView const& q = problem.q;
  result.heads = error_per_head(run.output, reference, q.batch(), q.seqlen(), q.num_heads(), q.head_dim());
}

ordered_json result_json(RecipeResult const& result, RunArguments const& run) {
  bool const failed = !result.error.empty();
  ordered_json record{{"recipe", result.name()}};
  add_error_figures(record, result);
  auto const seconds = [failed](double value) { return failed ? ordered_json() : ordered_json(value); };
  record["seconds"] = seconds(result.seconds.both());
  record["prepare_seconds"] = seconds(result.seconds.prepare);
  record["attention_seconds"] = seconds(result.seconds.attention);
  record["value_energy_removed"] = std::isfinite(result.value_energy_removed) ? ordered_json(result.value_energy_removed) : ordered_json();
  ordered_json per_head = ordered_json::array();
  for (ErrorSums const& head : result.heads) per_head.push_back(head.rel_l2());
  record["rel_l2_per_head"] = failed ? ordered_json() : per_head;
  record["device"] = run.device;
  record["prepared_on"] = device_name(parse_devices(run).preparation);
  record["options"] = options_json(result.options);
  if (failed) record["error"] = result.error;
  return record;
}

void print_table(std::vector<RecipeResult> const& results, Device device) {
  bool const gpu = device == Device::cuda;
  fmt::print("{:<10} {:>11} {:>9} {:>11} {:>10} {:>10} {:>9}\n", "recipe", "rel_l2", "SNR dB", "cosine", "max abs", "V removed",
             gpu ? "GPU ms" : "seconds");
  for (RecipeResult const& result : results) {
    if (!result.error.empty()) {
      fmt::print("{:<10} {}\n", result.name(), one_line(refusal_text(result, device)));
      continue;
    }
    ErrorSums const total = pooled(result.heads);
    fmt::print("{:<10} {:>11} {:>9.2f} {:>11.8f} {:>10.3g} {:>10} {:>9.3f}\n", result.name(), percent(total.rel_l2()), total.snr_db(),
               total.cosine(), total.max_abs(),
               std::isfinite(result.value_energy_removed) ? fixed_percent(result.value_energy_removed, 1) : "-",
               gpu ? 1e3 * result.seconds.attention : result.seconds.both());
  }
}

/// The recipes to run with their options; contradictory names and values are refused before any work is done.
std::vector<RecipeResult> planned_results(CompareArguments const& arguments) {
  std::vector<RecipeResult> results;
  for (Recipe const recipe : parse_recipes(arguments.recipes)) {
    RecipeResult result;
    result.recipe = recipe;
    result.options = resolve_options(recipe, arguments.run);
    results.push_back(std::move(result));
  }
  return results;
}

void run_compare(CompareArguments const& arguments) {
  require_distinct_paths(std::vector<NamedPath>{arguments.json.named_path(), {"--html", arguments.html}}, arguments.input.named_paths());
  std::vector<RecipeResult> results = planned_results(arguments);
  Devices const devices = usable_devices(arguments.run);
  std::int64_t const queries = parse_integer("--queries", arguments.queries, 0, std::int64_t{1} << 40);
  LoadedProblem const loaded(arguments.input);
  Problem problem = loaded.problem();
  if (queries != 0 && problem.causal)
    throw Error(ErrorCode::invalid_argument, "--queries needs a non-causal call: leave out --causal or --queries");
  ordered_json const shape = shape_json(problem);
  problem.q = sample_queries(problem.q, evenly_spaced(problem.q.seqlen(), queries));

  Options const exact = exact_options(arguments.run);
  require_support(problem, exact, {});
  require_any_support({results.begin(), results.end()}, problem, devices, !arguments.recipes.empty(), "input");
  JsonSink json(arguments.json);
  std::optional<AtomicFile> html_file;
  if (!arguments.html.empty()) html_file.emplace(arguments.html);
  {
    auto const steps = static_cast<std::int64_t>(results.size()) + 1;
    Progress progress(steps);
    progress.update(0, "exact reference in FP64");
    std::vector<float> const reference = run_recipe(problem, exact, {}).output;
    for (std::size_t i = 0; i < results.size(); ++i) {
      progress.update(static_cast<std::int64_t>(i) + 1, results[i].name());
      evaluate(results[i], problem, devices, reference);
    }
  }

  ordered_json record{{"input", loaded.name()}, {"shape", shape}};
  if (devices.attention == Device::cuda) record["cuda_device"] = cuda_device_description();
  if (problem.q.seqlen() != shape["seqlen_q"]) record["queries"] = problem.q.seqlen();
  record["results"] = ordered_json::array();
  for (RecipeResult const& result : results) record["results"].push_back(result_json(result, arguments.run));
  if (html_file) {
    html_file->write(comparison_page(loaded.name(), problem, shape, results, arguments.run));
    html_file->commit();
  }
  json.write(record);
  if (!arguments.json.to_stdout()) print_table(results, devices.attention);
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto const arguments = std::make_shared<CompareArguments>();
  CLI::App* const command = app.add_subcommand("compare", "Error of recipes against exact attention in FP64");
  add_input_options(*command, arguments->input);
  command->add_option("--recipes", arguments->recipes, "recipes to run; default all")->type_name("A,B,...");
  command->add_option("--queries", arguments->queries, "only N evenly spaced query rows per head, for a quick look")->type_name("N");
  command->add_option("--html", arguments->html, "self-contained page with table and figures")->type_name("F.html");
  add_run_options(*command, arguments->run);
  add_prepare_on_option(*command, arguments->run);
  add_json_option(*command, arguments->json);
  command->callback([arguments] { run_compare(*arguments); });
}

}  // namespace vcattn::cli
