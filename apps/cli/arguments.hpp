#pragma once

// Options that several commands share, and what they mean in terms of the library.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "devices.hpp"
#include "io/atomic_file.hpp"
#include "vcattn/attention.hpp"
#include "vcattn/options.hpp"

namespace vcattn::cli {

inline constexpr std::string_view kStdoutError = "cannot write to standard output: free space, or close no pipe early";

enum class Layout { nhd, hnd };

/// Where Q, K and V come from.
struct InputArguments {
  std::string file;
  std::string q_file, k_file, v_file;
  std::string layout = "nhd";
  std::string seqused_k;
  std::string permutation_file;
  bool causal = false;
  /// For require_distinct_paths().
  std::vector<NamedPath> named_paths() const;
};

/// How to compute.
struct RunArguments {
  std::string overrides;
  std::string threads = "0";
  std::string device = "cpu";
  std::string prepare_on;  ///< as `device` where empty
  bool no_check_finite = false;
};

/// Where the machine-readable record goes: nowhere (empty), stdout ("-") or a file.
struct JsonArgument {
  std::string target;
  bool wanted() const { return !target.empty(); }
  bool to_stdout() const { return target == "-"; }
  /// For require_distinct_paths().
  NamedPath named_path() const { return {"--json", to_stdout() ? std::string() : target}; }
};

void add_input_options(CLI::App& command, InputArguments& arguments);
void add_run_options(CLI::App& command, RunArguments& arguments);
void add_prepare_on_option(CLI::App& command, RunArguments& arguments);
void add_threads_option(CLI::App& command, std::string& threads);
void add_json_option(CLI::App& command, JsonArgument& argument);

std::int32_t parse_threads(std::string_view text);
Layout parse_layout(std::string_view text);
Device parse_device(std::string_view text);

/// parse_device() of a device that can be used here, asked before any work. Errors: also ErrorCode::unsupported, with the reason.
Device usable_device(std::string_view text);

/// --device and --prepare-on. Errors: invalid_argument, also for preparation on a GPU with attention on the CPU.
Devices parse_devices(RunArguments const& arguments);
/// The same of devices that can be used here.
Devices usable_devices(RunArguments const& arguments);

/// Comma-separated recipe names; empty: all.
std::vector<Recipe> parse_recipes(std::string_view text);

/// A recipe's options with --set, --threads and --no-check-finite applied. Preparation on a GPU does not look for NaN and infinity: there
/// the command does, in the host's copy. Errors: ErrorCode::invalid_argument.
Options resolve_options(Recipe recipe, RunArguments const& arguments);

/// describe_options() as a JSON object.
nlohmann::ordered_json options_json(Options const& options);

/// {"batch", "seqlen_q", "seqlen_kv", "num_heads", "head_dim"}, plus "num_heads_kv" where it differs.
nlohmann::ordered_json shape_json(Problem const& problem);

/// Target of a record; a file is opened at construction, before the long work.
class JsonSink {
 public:
  explicit JsonSink(JsonArgument const& argument);
  /// Writes the record and a newline, once; nothing where none is wanted. NaN and infinity become null.
  void write(nlohmann::ordered_json const& record);

 private:
  bool to_stdout_;
  std::optional<AtomicFile> file_;
};

}  // namespace vcattn::cli
