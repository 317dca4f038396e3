#include "evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention_run.hpp"

namespace vcattn::cli {

Run run_recipe(Problem const& problem, Options const& options, Devices devices) {
  Run run;
  AttentionRun stages(problem, options, devices, output_view(problem.q, run.output));
  run.seconds.prepare = stages.prepare();
  if (devices.preparation == Device::cuda) run.seconds.prepare = stages.prepare();
  run.seconds.attention = stages.attention();
  if (devices.attention == Device::cuda) run.seconds.attention = stages.attention();
  stages.fetch();
  run.value_energy_removed = stages.value_energy_removed();
  return run;
}

MutableTensorView output_view(TensorView const& q, std::vector<float>& output) {
  output.resize(static_cast<std::size_t>(q.batch() * q.seqlen() * q.num_heads() * q.head_dim()));
  TensorView const layout = nhd_view(output.data(), DType::f32, q.batch(), q.seqlen(), q.num_heads(), q.head_dim());
  return {output.data(), layout.dtype, layout.shape, layout.stride};
}

Options exact_options(RunArguments const& arguments) {
  Options options = recipe_options(Recipe::exact);
  options.exact_f64 = true;
  options.num_threads = parse_threads(arguments.threads);
  options.check_finite = !arguments.no_check_finite;
  return options;
}

QuerySample evenly_spaced(std::int64_t seqlen, std::int64_t count) {
  if (count == 0 || count >= seqlen) return {0, 1, seqlen};
  std::int64_t const step = seqlen / count;
  return {step / 2, step, count};
}

TensorView sample_queries(TensorView const& q, QuerySample const& sample) {
  TensorView view = q;
  view.data = static_cast<std::byte const*>(q.data) + sample.first * q.stride[1] * dtype_bytes(q.dtype);
  view.shape[1] = sample.count;
  view.stride[1] *= sample.step;
  return view;
}

std::vector<float> sample_rows(std::vector<float> const& output, Problem const& problem, QuerySample const& sample) {
  std::int64_t const row = problem.q.num_heads() * problem.q.head_dim();
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(problem.q.batch() * sample.count * row));
  for (std::int64_t b = 0; b < problem.q.batch(); ++b) {
    for (std::int64_t i = 0; i < sample.count; ++i) {
      auto const begin = output.begin() + (b * problem.q.seqlen() + sample.first + i * sample.step) * row;
      rows.insert(rows.end(), begin, begin + row);
    }
  }
  return rows;
}

void check_support(RecipeResult& result, Problem const& problem, Devices devices, bool named) {
  Support const support = run_support(problem, result.options, devices);
  if (support.ok) return;
  result.error = support.reason;
  if (named && devices.attention == Device::cuda) {
    throw Error(ErrorCode::unsupported, fmt::format("{} is {}; leave it out of --recipes, or use --device cpu", result.name(),
                                                    refusal_text(result, devices.attention)));
  }
}

void require_any_support(std::vector<std::reference_wrapper<RecipeResult>> const& results, Problem const& problem, Devices devices,
                         bool named, std::string_view what) {
  for (RecipeResult& result : results) check_support(result, problem, devices, named);
  bool const none = std::ranges::none_of(results, [](RecipeResult const& result) { return result.error.empty(); });
  if (none) throw Error(ErrorCode::unsupported, fmt::format("no recipe can serve this {}: {}", what, results.front().get().error));
}

std::string refusal_text(RecipeResult const& result, Device device) {
  return (device == Device::cpu ? "not run: " : "not served on cuda: ") + result.error;
}

void add_error_figures(nlohmann::ordered_json& record, RecipeResult const& result) {
  bool const has_figures = result.error.empty();
  ErrorSums const total = pooled(result.heads);
  auto const figure = [has_figures](double value) { return has_figures && std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr; };
  record["rel_l2"] = figure(total.rel_l2());
  record["snr_db"] = figure(total.snr_db());
  record["cosine"] = figure(total.cosine());
  record["max_abs"] = figure(total.max_abs());
}

std::string percent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  double const value = 100.0 * fraction;
  return std::abs(value) < 0.001 && value != 0 ? fmt::format("{:.1e} %", value) : fmt::format("{:.3f} %", value);
}

std::string fixed_percent(double fraction, int decimals) {
  double const scale = std::pow(10.0, decimals);
  double const rounded = std::round(100.0 * fraction * scale) / scale;
  return fmt::format("{:.{}f} %", rounded == 0 ? 0.0 : rounded, decimals);
}

}  // namespace vcattn::cli
