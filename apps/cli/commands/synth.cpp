#include <fmt/format.h>

#include <limits>
#include <memory>

#include "arguments.hpp"
#include "commands/commands.hpp"
#include "io/elements.hpp"
#include "io/safetensors.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "synth/video_scene.hpp"
#include "vcattn/version.hpp"

namespace vcattn::cli {
namespace {

constexpr std::int64_t kMaxExtent = 1 << 16;
constexpr std::int64_t kMaxTokens = 1 << 24;

struct SynthArguments {
  std::string output, grid, heads = "1", head_dim = "128", seed = "0";
  bool rope = false;
  JsonArgument json;
};

SceneConfig scene_config(SynthArguments const& arguments) {
  auto const grid = parse_integers("--grid", arguments.grid, 3, 1, kMaxExtent);
  SceneConfig config;
  config.frames = grid[0];
  config.rows = grid[1];
  config.columns = grid[2];
  config.num_heads = parse_integer("--heads", arguments.heads, 1, 4096);
  config.head_dim = parse_integer("--head-dim", arguments.head_dim, 8, 256);
  config.seed = static_cast<std::uint64_t>(parse_integer("--seed", arguments.seed, 0, std::numeric_limits<std::int64_t>::max()));
  config.rope = arguments.rope;
  if (config.head_dim % 8 != 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--head-dim: a multiple of 8 required, got {}", config.head_dim));
  }
  if (config.frames * config.rows * config.columns > kMaxTokens) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--grid: at most {} tokens, got {}", kMaxTokens, arguments.grid));
  }
  return config;
}

void write_tensor(SafetensorsWriter& writer, VideoScene const& scene, SceneConfig const& config, Operand operand, Progress& progress,
                  std::int64_t& frames_done) {
  auto const head_dim = static_cast<std::size_t>(config.head_dim);
  std::vector<float> row(head_dim);
  std::vector<std::uint16_t> line(static_cast<std::size_t>(config.columns * config.num_heads) * head_dim);
  std::int64_t token = 0;
  for (std::int64_t t = 0; t < config.frames; ++t) {
    for (std::int64_t y = 0; y < config.rows; ++y) {
      auto code = line.begin();
      for (std::int64_t x = 0; x < config.columns; ++x, ++token) {
        for (std::int64_t h = 0; h < config.num_heads; ++h) {
          scene.row(operand, token, h, row);
          for (float const value : row) *code++ = encode_bf16(value);
        }
      }
      writer.append(std::as_bytes(std::span(line)));
    }
    progress.update(++frames_done, "frames");
  }
}

void run_synth(SynthArguments const& arguments) {
  require_distinct_paths(std::vector<NamedPath>{{"--output", arguments.output}, arguments.json.named_path()});
  SceneConfig const config = scene_config(arguments);
  std::vector<std::int64_t> const shape{1, config.frames * config.rows * config.columns, config.num_heads, config.head_dim};
  std::vector<TensorSpec> const specs{{"q", "BF16", shape}, {"k", "BF16", shape}, {"v", "BF16", shape}};
  SafetensorsWriter writer(arguments.output, specs,
                           {{"generator", "vcattn synth " VCATTN_VERSION_STRING},
                            {"grid", arguments.grid},
                            {"seed", arguments.seed},
                            {"rope", config.rope ? "interleaved, 3-D" : "none"},
                            {"softmax_scale", fmt::format("1/sqrt({})", config.head_dim)}});
  JsonSink json(arguments.json);
  VideoScene const scene(config);
  {
    Progress progress(3 * config.frames);
    std::int64_t frames_done = 0;
    for (Operand const operand : {Operand::q, Operand::k, Operand::v}) write_tensor(writer, scene, config, operand, progress, frames_done);
  }
  json.write({{"output", arguments.output},
              {"grid", {config.frames, config.rows, config.columns}},
              {"shape", shape},
              {"dtype", "bf16"},
              {"seed", config.seed},
              {"rope", config.rope}});
  writer.commit();
  if (!arguments.json.to_stdout()) {
    fmt::print("q, k, v bf16 [{}, {}, {}, {}] -> {}\n", shape[0], shape[1], shape[2], shape[3], arguments.output);
  }
}

}  // namespace

void add_synth_command(CLI::App& app) {
  auto const arguments = std::make_shared<SynthArguments>();
  CLI::App* const command = app.add_subcommand("synth", "Synthetic video-like q, k, v; equal seeds give equal files on every machine");
  command->add_option("-o,--output", arguments->output, "file to write: q, k, v bf16 [1, T*H*W, heads, D]")
      ->type_name("F.safetensors")
      ->required();
  command->add_option("--grid", arguments->grid, "tokens in time, height and width")->type_name("T,H,W")->required();
  command->add_option("--heads", arguments->heads, "heads; default 1")->type_name("N");
  command->add_option("--head-dim", arguments->head_dim, "channels per head, a multiple of 8; default 128")->type_name("D");
  command->add_option("--seed", arguments->seed, "default 0")->type_name("S");
  command->add_flag("--rope", arguments->rope, "rotate q and k by their 3-D position");
  add_json_option(*command, arguments->json);
  command->callback([arguments] { run_synth(*arguments); });
}

}  // namespace vcattn::cli
