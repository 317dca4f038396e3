#include "arguments.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <span>

#include "parse.hpp"
#include "vcattn/cuda.hpp"

namespace vcattn::cli {

using nlohmann::ordered_json;

void add_input_options(CLI::App& command, InputArguments& arguments) {
  command.add_option("input", arguments.file, "safetensors file with q, k, v [B, S, H, D] (BF16, F16 or F32)")->type_name("IN.safetensors");
  command.add_option("--q", arguments.q_file, "q as .npy instead of IN: [S, D], [S, H, D] or [B, S, H, D]")->type_name("F.npy");
  command.add_option("--k", arguments.k_file, "k as .npy")->type_name("F.npy");
  command.add_option("--v", arguments.v_file, "v as .npy")->type_name("F.npy");
  command.add_option("--layout", arguments.layout, "nhd: [B, S, H, D] (default); hnd: [B, H, S, D]")->type_name("nhd|hnd");
  command.add_option("--seqused-k", arguments.seqused_k, "valid keys of each batch entry; later ones are padding")->type_name("A,B,...");
  command.add_option("--perm", arguments.permutation_file, "key permutation written by 'vcattn group'")->type_name("F.safetensors");
  command.add_flag("--causal", arguments.causal, "causal mask, aligned to the last key");
}

std::vector<NamedPath> InputArguments::named_paths() const {
  return {{"the input", file}, {"--q", q_file}, {"--k", k_file}, {"--v", v_file}, {"--perm", permutation_file}};
}

void add_run_options(CLI::App& command, RunArguments& arguments) {
  command.add_option("--set", arguments.overrides, "choices that replace the recipe's own, e.g. expcast=paper,block=64")
      ->type_name("KEY=VALUE,...");
  command.add_flag("--no-check-finite", arguments.no_check_finite, "accept NaN and infinity in the inputs");
  command.add_option("--device", arguments.device, fmt::format("where it runs: cpu (default) or {}, on the current GPU", gpu_name))
      ->type_name(fmt::format("cpu|{}", gpu_name));
  add_threads_option(command, arguments.threads);
}

void add_prepare_on_option(CLI::App& command, RunArguments& arguments) {
  command
      .add_option("--prepare-on", arguments.prepare_on,
                  fmt::format("with --device {0}, where grouping and preparation run: {0} (default), or cpu with a copy to the GPU before "
                              "attention",
                              gpu_name))
      ->type_name(fmt::format("cpu|{}", gpu_name));
}

void add_threads_option(CLI::App& command, std::string& threads) {
  command.add_option("--threads", threads, "worker threads; 0: all cores (default)")->type_name("N");
}

void add_json_option(CLI::App& command, JsonArgument& argument) {
  command.add_option("--json", argument.target, "machine-readable record to F, or to stdout where F is '-' or left out")
      ->type_name("[F]")
      ->expected(0, 1)
      ->default_str("-");
}

std::int32_t parse_threads(std::string_view text) { return static_cast<std::int32_t>(parse_integer("--threads", text, 0, 4096)); }

Layout parse_layout(std::string_view text) {
  if (text == "nhd") return Layout::nhd;
  if (text == "hnd") return Layout::hnd;
  throw Error(ErrorCode::invalid_argument, fmt::format("--layout: nhd or hnd required, got '{}'", text));
}

namespace {

Device parse_device_of(std::string_view option, std::string_view text) {
  if (text == "cpu") return Device::cpu;
  if (text == gpu_name) return Device::cuda;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: cpu or {} required, got '{}'", option, gpu_name, text));
}

}  // namespace

Device parse_device(std::string_view text) { return parse_device_of("--device", text); }

Device usable_device(std::string_view text) {
  Device const device = parse_device(text);
  if (device == Device::cuda) {
    if (std::string const reason = cuda_unavailable_reason(); !reason.empty()) throw Error(ErrorCode::unsupported, reason);
  }
  return device;
}

Devices parse_devices(RunArguments const& arguments) {
  Device const device = parse_device(arguments.device);
  if (arguments.prepare_on.empty()) return {device, device};
  Devices const devices{device, parse_device_of("--prepare-on", arguments.prepare_on)};
  if (devices.attention == Device::cpu && devices.preparation == Device::cuda) {
    throw Error(ErrorCode::invalid_argument,
                "--prepare-on: cpu required with --device cpu, got 'cuda'; use --device cuda, or leave it out");
  }
  return devices;
}

Devices usable_devices(RunArguments const& arguments) {
  Devices const devices = parse_devices(arguments);
  usable_device(arguments.device);
  return devices;
}

std::vector<Recipe> parse_recipes(std::string_view text) {
  auto const all = all_recipes();
  if (text.empty()) return {all.begin(), all.end()};
  std::vector<Recipe> recipes;
  for (std::string const& name : parse_words("--recipes", text)) recipes.push_back(parse_recipe(name));
  return recipes;
}

Options resolve_options(Recipe recipe, RunArguments const& arguments) {
  Options options = recipe_options(recipe);
  options.check_finite = !arguments.no_check_finite && parse_devices(arguments).preparation == Device::cpu;
  options.num_threads = parse_threads(arguments.threads);
  if (!arguments.overrides.empty()) set_options(options, arguments.overrides);
  return options;
}

ordered_json options_json(Options const& options) {
  ordered_json result = ordered_json::object();
  for (auto const& [key, value] : describe_options(options)) result[key] = value;
  return result;
}

ordered_json shape_json(Problem const& problem) {
  ordered_json shape{{"batch", problem.q.batch()},
                     {"seqlen_q", problem.q.seqlen()},
                     {"seqlen_kv", problem.k.seqlen()},
                     {"num_heads", problem.q.num_heads()},
                     {"head_dim", problem.q.head_dim()}};
  if (problem.k.num_heads() != problem.q.num_heads()) shape["num_heads_kv"] = problem.k.num_heads();
  return shape;
}

JsonSink::JsonSink(JsonArgument const& argument) : to_stdout_(argument.to_stdout()) {
  if (argument.wanted() && !to_stdout_) file_.emplace(argument.target);
}

void JsonSink::write(ordered_json const& record) {
  if (!to_stdout_ && !file_) return;
  std::string const text = record.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (to_stdout_) {
    fmt::print("{}", text);
    if (std::fflush(stdout) != 0) throw Error(ErrorCode::io, std::string(kStdoutError));
    return;
  }
  file_->write(text);
  file_->commit();
}

}  // namespace vcattn::cli
