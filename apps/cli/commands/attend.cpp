#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>

#include "arguments.hpp"
#include "attention_run.hpp"
#include "commands/commands.hpp"
#include "inputs.hpp"
#include "io/safetensors.hpp"
#include "progress.hpp"
#include "vcattn/version.hpp"

namespace vcattn::cli {
namespace {

struct AttendArguments {
  InputArguments input;
  RunArguments run;
  JsonArgument json;
  std::string output, recipe, out_dtype;
  bool lse = false;
};

DType parse_out_dtype(std::string_view text, DType input_dtype) {
  if (text.empty()) return input_dtype;
  for (DType const dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (text == dtype_name(dtype)) return dtype;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("--out-dtype: f32, f16 or bf16 required, got '{}'", text));
}

/// o in the layout of the input, and lse [B, H, Sq].
std::vector<TensorSpec> output_specs(TensorView const& q, Layout layout, DType dtype, bool with_lse) {
  std::vector<std::int64_t> shape{q.batch(), q.seqlen(), q.num_heads(), q.head_dim()};
  if (layout == Layout::hnd) std::swap(shape[1], shape[2]);
  std::vector<TensorSpec> specs{{"o", safetensors_dtype(dtype), shape}};
  if (with_lse) specs.push_back({"lse", "F32", {q.batch(), q.num_heads(), q.seqlen()}});
  return specs;
}

void run_attend(AttendArguments const& arguments) {
  require_distinct_paths(std::vector<NamedPath>{{"--output", arguments.output}, arguments.json.named_path()},
                         arguments.input.named_paths());
  Recipe const recipe = arguments.recipe.empty() ? Options{}.recipe : parse_recipe(arguments.recipe);
  Options const options = resolve_options(recipe, arguments.run);
  Devices const devices = usable_devices(arguments.run);
  LoadedProblem const loaded(arguments.input);
  Problem const problem = loaded.problem();
  TensorView const& q = problem.q;
  DType const dtype = parse_out_dtype(arguments.out_dtype, q.dtype);
  require_support(problem, options, devices);
  if (devices.preparation == Device::cuda && !arguments.run.no_check_finite) require_finite_problem(problem);

  std::map<std::string, std::string> const metadata{{"recipe", std::string(recipe_name(recipe))}, {"vcattn", VCATTN_VERSION_STRING}};
  SafetensorsWriter writer(arguments.output, output_specs(q, loaded.layout(), dtype, arguments.lse), metadata);

  JsonSink json(arguments.json);

  auto const rows = static_cast<std::size_t>(q.batch() * q.num_heads() * q.seqlen());
  std::vector<std::byte> output(rows * static_cast<std::size_t>(q.head_dim() * dtype_bytes(dtype)));
  std::vector<float> lse(arguments.lse ? rows : 0);
  auto const make_view = loaded.layout() == Layout::nhd ? nhd_view : hnd_view;
  TensorView const o = make_view(output.data(), dtype, q.batch(), q.seqlen(), q.num_heads(), q.head_dim());

  auto const start = std::chrono::steady_clock::now();
  {
    Progress progress(1);
    progress.update(0, fmt::format("{} {}", recipe_name(recipe), loaded.name()));
    AttentionRun run(problem, options, devices, {output.data(), o.dtype, o.shape, o.stride}, lse);
    if (devices.attention == devices.preparation) {
      run.attend();
    } else {
      run.prepare();
      run.attention();
    }
    run.fetch();
  }
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  writer.append(output);
  writer.append(std::as_bytes(std::span(lse)));
  json.write({{"input", loaded.name()},
              {"output", arguments.output},
              {"recipe", recipe_name(recipe)},
              {"shape", shape_json(problem)},
              {"out_dtype", dtype_name(dtype)},
              {"lse", arguments.lse},
              {"seconds", seconds},
              {"device", arguments.run.device},
              {"prepared_on", device_name(devices.preparation)},
              {"options", options_json(options)}});
  writer.commit();
  if (!arguments.json.to_stdout()) fmt::print("{}: {} in {:.3f} s -> {}\n", loaded.name(), recipe_name(recipe), seconds, arguments.output);
}

}  // namespace

void add_attend_command(CLI::App& app) {
  auto const arguments = std::make_shared<AttendArguments>();
  CLI::App* const command =
      app.add_subcommand("attend", "Attention of q, k, v; writes o in the layout of the input, [B, S, H, D] or [B, H, S, D]");
  add_input_options(*command, arguments->input);
  command->add_option("-o,--output", arguments->output, "file to write")->type_name("OUT.safetensors")->required();
  command->add_option("--recipe", arguments->recipe, "recipe, see 'vcattn info'; default vc8s")->type_name("R");
  command->add_flag("--lse", arguments->lse, "also write lse [B, H, Sq], natural logarithm");
  command->add_option("--out-dtype", arguments->out_dtype, "element type of o; default that of q")->type_name("f32|f16|bf16");
  add_run_options(*command, arguments->run);
  add_prepare_on_option(*command, arguments->run);
  add_json_option(*command, arguments->json);
  command->callback([arguments] { run_attend(*arguments); });
}

}  // namespace vcattn::cli
