#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>

#include "arguments.hpp"
#include "commands/commands.hpp"
#include "evaluate.hpp"
#include "inputs.hpp"
#include "io/safetensors.hpp"
#include "parse.hpp"
#include "progress.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/grouping.hpp"
#include "vcattn/version.hpp"

namespace vcattn::cli {
namespace {

struct GroupArguments {
  std::string file, v_file, tensor = "v", layout = "nhd", seqused_k, output;
  RunArguments run;
  JsonArgument json;
};

HostTensor load_values(GroupArguments const& arguments, Layout layout) {
  if (arguments.file.empty() == arguments.v_file.empty()) {
    throw Error(ErrorCode::invalid_argument, "either IN.safetensors or --v F.npy required; see --help");
  }
  return arguments.file.empty() ? load_npy_tensor(arguments.v_file, layout) : load_safetensors_tensor(arguments.file, arguments.tensor);
}

Options grouping_options(RunArguments const& run) {
  Options options = resolve_options(Options{}.recipe, run);
  if (options.order == GroupOrder::automatic) options.order = GroupOrder::chain_sorted;
  return options;
}

double mean(std::vector<double> const& values) {
  return values.empty() ? 0.0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string option_text(Options const& options, std::string_view key) {
  for (auto const& [name, value] : describe_options(options)) {
    if (name == key) return value;
  }
  return "";
}

/// What group_values() refuses, and head counts that only a file without elements can have.
void require_groupable(TensorView const& v) {
  constexpr std::int64_t kMostHeads = std::int64_t{1} << 24;
  bool const heads_ok = v.num_heads() >= 1 && v.num_heads() <= kMostHeads && v.batch() <= kMostHeads / v.num_heads();
  if (heads_ok && v.head_dim() >= 1 && v.seqlen() <= std::numeric_limits<std::int32_t>::max()) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("values of fewer than 2^31 rows, 1 or more channels and 1 to {} heads in all batch entries required, got batch {}, "
                  "seqlen {}, heads {}, head_dim {}; check the shape and --layout",
                  kMostHeads, v.batch(), v.seqlen(), v.num_heads(), v.head_dim()));
}

struct Grouped {
  std::vector<std::int32_t> permutation;
  std::int32_t clusters = 0;
  double seconds = 0;
};

Grouped group_on_cpu(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k) {
  auto const start = std::chrono::steady_clock::now();
  GroupingState state = group_values(v, options, seqused_k);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {std::move(state.permutation), state.clusters, seconds};
}

/// v: contiguous, in host memory. Copies are not in the seconds.
Grouped group_on_gpu(TensorView const& v, Options const& options, std::span<std::int32_t const> seqused_k) {
  GroupingSizes const sizes = grouping_sizes(v, options, seqused_k, Device::cuda);
  load_cuda_kernels();
  CudaBuffer values(static_cast<std::size_t>(v.batch() * v.num_heads() * v.seqlen() * v.head_dim() * dtype_bytes(v.dtype)));
  CudaBuffer workspace(sizes.workspace_bytes);
  CudaBuffer permutation(sizes.permutation * sizeof(std::int32_t));
  values.upload(v.data, values.size());
  TensorView on_gpu = v;
  on_gpu.data = values.data();
  Call const call{Device::cuda, nullptr, {static_cast<std::byte*>(workspace.data()), workspace.size()}};
  CudaTimer timer;
  timer.start();
  group_values(on_gpu, options, seqused_k, {{static_cast<std::int32_t*>(permutation.data()), sizes.permutation}, {}}, call);
  Grouped result{std::vector<std::int32_t>(sizes.permutation), sizes.clusters, timer.stop_ms() * 1e-3};
  permutation.download(result.permutation.data(), permutation.size());
  return result;
}

void run_group(GroupArguments const& arguments) {
  require_distinct_paths(std::vector<NamedPath>{{"--output", arguments.output}, arguments.json.named_path()},
                         std::vector<NamedPath>{{"the input", arguments.file}, {"--v", arguments.v_file}});
  Options const options = grouping_options(arguments.run);
  validate_options(options);
  Device const device = usable_device(arguments.run.device);
  Layout const layout = parse_layout(arguments.layout);
  HostTensor const tensor = load_values(arguments, layout);
  TensorView const v = tensor.view(layout);
  require_groupable(v);
  auto const seqused_k = parse_seqused(arguments.seqused_k, v);
  if (!arguments.run.no_check_finite) require_finite(arguments.file.empty() ? "v" : shortened(arguments.tensor), v, seqused_k);

  std::vector<TensorSpec> const specs{{"perm", "I32", {v.batch(), v.num_heads(), v.seqlen()}}};
  std::map<std::string, std::string> const metadata{{"order", option_text(options, "order")}, {"vcattn", VCATTN_VERSION_STRING}};
  SafetensorsWriter writer(arguments.output, specs, metadata);
  JsonSink json(arguments.json);

  Grouped grouped;
  std::vector<double> before, after;
  {
    Progress progress(1);
    progress.update(0, "k-means");
    grouped = device == Device::cuda ? group_on_gpu(v, options, seqused_k) : group_on_cpu(v, options, seqused_k);
    before = value_energy_removed(v, {}, options.v_block, seqused_k);
    after = value_energy_removed(v, grouped.permutation, options.v_block, seqused_k);
  }
  writer.append(std::as_bytes(std::span(grouped.permutation)));
  std::string const& input = arguments.file.empty() ? arguments.v_file : arguments.file;
  json.write({{"input", input},
              {"output", arguments.output},
              {"tensor", arguments.tensor},
              {"shape", {{"batch", v.batch()}, {"seqlen_kv", v.seqlen()}, {"num_heads_kv", v.num_heads()}, {"head_dim", v.head_dim()}}},
              {"clusters", grouped.clusters},
              {"seconds", grouped.seconds},
              {"value_energy_removed", {{"sequence", mean(before)}, {"grouped", mean(after)}}},
              {"value_energy_removed_per_head", {{"sequence", before}, {"grouped", after}}},
              {"device", arguments.run.device},
              {"options", options_json(options)}});
  writer.commit();
  if (!arguments.json.to_stdout()) {
    fmt::print("{}: {} clusters, {:.3f} s -> {}\nvalue energy removed by means of {} rows: {} in sequence order, {} grouped\n", input,
               grouped.clusters, grouped.seconds, arguments.output, options.v_block, fixed_percent(mean(before), 3),
               fixed_percent(mean(after), 3));
  }
}

}  // namespace

void add_group_command(CLI::App& app) {
  auto const arguments = std::make_shared<GroupArguments>();
  CLI::App* const command = app.add_subcommand("group", "Permutation of the keys that brings similar values into the same blocks");
  command->add_option("input", arguments->file, "safetensors file with the values [B, S, H, D]")->type_name("IN.safetensors");
  command->add_option("--tensor", arguments->tensor, "name of the tensor to group; default v")->type_name("NAME");
  command->add_option("--v", arguments->v_file, "values as .npy instead of IN")->type_name("F.npy");
  command->add_option("--layout", arguments->layout, "nhd: [B, S, H, D] (default); hnd: [B, H, S, D]")->type_name("nhd|hnd");
  command->add_option("--seqused-k", arguments->seqused_k, "valid keys of each batch entry")->type_name("A,B,...");
  command->add_option("-o,--output", arguments->output, "file to write: perm, int32 [B, Hkv, Sk], sorted[i] = original[perm[i]]")
      ->type_name("PERM")
      ->required();
  add_run_options(*command, arguments->run);
  add_json_option(*command, arguments->json);
  command->callback([arguments] { run_group(*arguments); });
}

}  // namespace vcattn::cli
