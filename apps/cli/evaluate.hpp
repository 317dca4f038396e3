#pragma once

// Runs recipes on a problem and measures them against the exact result.

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "metrics.hpp"
#include "vcattn/attention.hpp"

namespace vcattn::cli {

/// Seconds of prepare() and attention(), each on the device where it runs; copies are in neither.
struct RunSeconds {
  double prepare = 0, attention = 0;
  double both() const { return prepare + attention; }
};

/// What one run of prepare() and attention() gave.
struct Run {
  std::vector<float> output;  ///< [B, Sq, H, D]
  RunSeconds seconds;
  double value_energy_removed = std::numeric_limits<double>::quiet_NaN();
};

/// On a GPU a stage runs twice, and the second call, when the GPU is warm, is timed.
Run run_recipe(Problem const& problem, Options const& options, Devices devices);

/// Makes `output` hold FP32 [B, Sq, H, D] for the queries `q`, and gives the view of it.
MutableTensorView output_view(TensorView const& q, std::vector<float>& output);

/// `exact` in double on the same inputs, with the threads and the finite check of `arguments`.
Options exact_options(RunArguments const& arguments);

/// Rows first, first + step, ... of the queries.
struct QuerySample {
  std::int64_t first = 0, step = 1, count = 0;
};

/// `count` evenly spaced query rows, each in the middle of its stretch; all of them where count is 0 or not smaller than seqlen.
QuerySample evenly_spaced(std::int64_t seqlen, std::int64_t count);

/// View of those rows.
TensorView sample_queries(TensorView const& q, QuerySample const& sample);

/// Those rows of a [B, Sq, H, D] output.
std::vector<float> sample_rows(std::vector<float> const& output, Problem const& problem, QuerySample const& sample);

/// One line of a comparison; `error` says why a recipe could not serve the input.
struct RecipeResult {
  Recipe recipe;
  Options options;
  std::string error;
  RunSeconds seconds;
  double value_energy_removed = std::numeric_limits<double>::quiet_NaN();
  std::vector<ErrorSums> heads;  ///< [B, H]

  std::string name() const { return std::string(recipe_name(recipe)); }
};

/// Asks run_support() and keeps the reason of a refusal in `error`. `named`: the user asked for this recipe by name, and on a GPU would
/// take the others for what he asked for. Errors: then ErrorCode::unsupported.
void check_support(RecipeResult& result, Problem const& problem, Devices devices, bool named);

/// check_support() of all, before the long work. what: "case" or "input", for the text. Errors: also ErrorCode::unsupported where none is
/// served.
void require_any_support(std::vector<std::reference_wrapper<RecipeResult>> const& results, Problem const& problem, Devices devices,
                         bool named, std::string_view what);

/// "not run: " or "not served on cuda: ", and why.
std::string refusal_text(RecipeResult const& result, Device device);

/// rel_l2, snr_db, cosine and max_abs of a result, null where it has none.
void add_error_figures(nlohmann::ordered_json& record, RecipeResult const& result);

/// Percent with two or three significant digits, "-" for NaN.
std::string percent(double fraction);

/// Percent with a fixed number of decimals, never "-0.0".
std::string fixed_percent(double fraction, int decimals);

}  // namespace vcattn::cli
