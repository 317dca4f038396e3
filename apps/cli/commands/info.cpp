#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "arguments.hpp"
#include "commands/commands.hpp"
#include "vcattn/info.hpp"

namespace vcattn::cli {
namespace {

std::string_view description(Recipe recipe) {
  switch (recipe) {
    case Recipe::exact:
      return "FP32 attention";
    case Recipe::bf16:
      return "BF16 operands and probabilities";
    case Recipe::fp8:
      return "E4M3 Q, K, V without smoothing, exact exponential";
    case Recipe::sage2:
      return "SageAttention2-like: INT8 Q, K with K mean, E4M3 V";
    case Recipe::vsmooth8:
      return "E4M3 Q, K, V-Smooth with compensated means, exact exponential";
    case Recipe::vc8_paper:
      return "VC-Attention as published: E4M3, V-Smooth, one-line ExpCast";
    case Recipe::vc8:
      return "vsmooth8 with two-line ExpCast instead of the exponential";
    case Recipe::vsmooth8s:
      return "vsmooth8 with INT8 Q, K";
    case Recipe::vc8s:
      return "vc8 with INT8 Q, K: the most accurate without exponentials";
    case Recipe::nvfp4:
      return "NVFP4 Q, K, V and probabilities without smoothing";
    case Recipe::sage3:
      return "SageAttention3-like: NVFP4 with Q, K means and two-level probabilities";
    case Recipe::vsmooth4:
      return "sage3 with 4-bit V-Smooth and compensated means";
  }
  return "";
}

void print_info(RuntimeInfo const& info) {
  fmt::print(
      "vcattn    {}\ncompiler  {}\nCPU       {}\nISA       {} (available: {})\nthreads   {}\nCUDA      {}\n\nrecipes (default: {})\n",
      info.version, info.compiler, info.cpu_model, info.isa, fmt::join(info.available_isas, ", "), info.num_threads, info.cuda_note,
      recipe_name(Options{}.recipe));
  for (Recipe const recipe : all_recipes()) fmt::print("  {:<10} {}\n", recipe_name(recipe), description(recipe));
}

nlohmann::ordered_json info_json(RuntimeInfo const& info) {
  nlohmann::ordered_json record{{"version", info.version},
                                {"compiler", info.compiler},
                                {"cpu_model", info.cpu_model},
                                {"isa", info.isa},
                                {"available_isas", info.available_isas},
                                {"threads", info.num_threads},
                                {"cuda_built", info.cuda_built},
                                {"cuda_usable", info.cuda_usable},
                                {"cuda_note", info.cuda_note},
                                {"default_recipe", recipe_name(Options{}.recipe)},
                                {"recipes", nlohmann::ordered_json::array()}};
  for (Recipe const recipe : all_recipes()) {
    record["recipes"].push_back(
        {{"name", recipe_name(recipe)}, {"description", description(recipe)}, {"options", options_json(recipe_options(recipe))}});
  }
  return record;
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto const json = std::make_shared<JsonArgument>();
  CLI::App* const command = app.add_subcommand("info", "Version, processor, CUDA and recipes of this build");
  add_json_option(*command, *json);
  command->callback([json] {
    RuntimeInfo const info = runtime_info();
    JsonSink(*json).write(info_json(info));
    if (!json->to_stdout()) print_info(info);
  });
}

}  // namespace vcattn::cli
