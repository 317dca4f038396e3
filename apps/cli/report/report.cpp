#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "report/energy_map.hpp"
#include "report/expcast_curves.hpp"
#include "report/svg.hpp"
#include "vcattn/cuda.hpp"
#include "vcattn/info.hpp"

namespace vcattn::cli {
namespace {

constexpr std::size_t kMostHeads = 12;

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --panel: #ffffff; --ink: #1b2230; --muted: #5d6778; --line: #e1e5eb; --smooth: #2559c9; --plain: #9aa5b5;
  --paper: #cf5a1d; --offset: #a58200; --affine: #158a58; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --panel: #1a2029; --ink: #e6e9ef; --muted: #9aa5b5; --line: #2c3440; --smooth: #7aa5ff;
  --plain: #6d7889; --paper: #ff9a5c; --offset: #e0bd3d; --affine: #4cc98f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
header h1 { margin: 0 0 4px; font-size: 26px; letter-spacing: -0.01em; }
header p { margin: 0; color: var(--muted); }
section, dl { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 18px 22px; margin: 18px 0 0; }
h2 { margin: 0 0 6px; font-size: 18px; }
h3 { margin: 14px 0 4px; font-size: 14px; font-weight: 600; }
p, figcaption { margin: 4px 0 10px; color: var(--muted); max-width: 76ch; }
.note { font-size: 13px; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 10px 24px; }
dt { font-size: 12px; color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-size: 12px; font-weight: 600; color: var(--muted); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.reason { text-align: left; white-space: normal; color: var(--muted); }
tr:last-child td { border-bottom: 0; }
td.bar { width: 30%; padding-right: 0; }
td.bar span { display: block; height: 12px; min-width: 1px; border-radius: 2px; background: var(--plain); }
td.bar span.smooth { background: var(--smooth); }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
svg text { fill: var(--muted); }
svg text.axis { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; }
.curve { fill: none; stroke-width: 1.4; stroke-linejoin: round; }
.heat, rect.smooth { fill: var(--smooth); }
rect.plain { fill: var(--plain); }
.c-exp { stroke: var(--ink); background: var(--ink); }
polyline.c-exp { stroke-width: 5; stroke-opacity: 0.3; }
.legend i.c-exp { opacity: 0.35; }
polyline.c-affine { stroke-dasharray: 5 4; }
.c-paper { stroke: var(--paper); background: var(--paper); }
.c-offset { stroke: var(--offset); background: var(--offset); }
.c-two { stroke: var(--smooth); background: var(--smooth); }
.c-affine { stroke: var(--affine); background: var(--affine); }
.k-smooth { background: var(--smooth); }
.k-plain { background: var(--plain); }
.legend span { display: inline-flex; align-items: center; margin-right: 18px; font-size: 13px; }
.legend i { width: 16px; height: 4px; border-radius: 2px; margin-right: 6px; }
.scroll { overflow-x: auto; }
rect.heat { shape-rendering: crispEdges; }
figure { margin: 6px 0 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 0 20px; }
.heads { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 4px 28px; }
footer { margin-top: 16px; color: var(--muted); font-size: 13px; }
)css";

constexpr std::string_view kFamilyLegend =
    "<p class='legend'><span><i class='k-smooth'></i>with V-Smooth</span><span><i class='k-plain'></i>without</span></p>\n";

std::string_view family(RecipeResult const& result) { return result.options.v_mean ? "smooth" : "plain"; }

double largest_error(std::vector<RecipeResult> const& results) {
  double largest = 0;
  for (RecipeResult const& result : results) {
    double const error = pooled(result.heads).rel_l2();
    if (std::isfinite(error)) largest = std::max(largest, error);
  }
  return largest > 0 ? largest : 1.0;
}

std::string condition(std::string_view name, std::string_view value) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", html_escape(name), html_escape(value));
}

std::string conditions(std::string const& input, Problem const& problem, nlohmann::ordered_json const& shape, RunArguments const& run) {
  RuntimeInfo const info = runtime_info();
  std::int32_t const threads = parse_threads(run.threads);
  auto const extent = [&shape](char const* name) { return shape.at(name).get<std::int64_t>(); };
  std::string html = "<dl>\n" + condition("input", input);
  html += condition("shape", fmt::format("batch {}, heads {}, queries {}, keys {}, head_dim {}", extent("batch"), extent("num_heads"),
                                         extent("seqlen_q"), extent("seqlen_kv"), extent("head_dim")));
  html += condition("input type",
                    fmt::format("q {}, k {}, v {}", dtype_name(problem.q.dtype), dtype_name(problem.k.dtype), dtype_name(problem.v.dtype)));
  html += condition("query rows measured",
                    problem.q.seqlen() == extent("seqlen_q") ? "all" : fmt::format("{} per head, evenly spaced", problem.q.seqlen()));
  html += condition("mask", problem.causal ? "causal" : problem.seqused_k.empty() ? "none" : "key lengths");
  html += condition("key order", problem.permutation.empty() ? "as each recipe groups" : "given by --perm");
  html += condition("choices replaced by --set", run.overrides.empty() ? "none" : run.overrides);
  html += condition("processor", fmt::format("{}, {}, {} threads", info.cpu_model, info.isa, threads == 0 ? info.num_threads : threads));
  if (Devices const devices = parse_devices(run); devices.attention == Device::cuda) {
    html += condition("attention on", cuda_device_description());
    html += condition("prepared on", devices.preparation == Device::cuda ? "the same GPU" : "the processor");
  }
  html += condition("software", fmt::format("vcattn {}, {}", info.version, info.compiler));
  return html + "</dl>\n";
}

std::string table_row(RecipeResult const& result, double largest, Device device) {
  if (!result.error.empty()) {
    return fmt::format("<tr><td>{}</td><td class='reason' colspan='7'>{}</td></tr>\n", result.name(),
                       html_escape(refusal_text(result, device)));
  }
  ErrorSums const total = pooled(result.heads);
  std::string const removed = std::isfinite(result.value_energy_removed) ? fixed_percent(result.value_energy_removed, 1) : "";
  double const share = std::isfinite(total.rel_l2()) ? total.rel_l2() / largest : 1.0;
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td class='bar'><span class='{}' "
      "style='width:{:.2f}%'></span></td><td>{:.2f}</td><td>{:.7f}</td><td>{:.2e}</td>"
      "<td>{}</td><td>{}</td></tr>\n",
      result.name(), percent(total.rel_l2()), family(result), 100 * share, total.snr_db(), total.cosine(), total.max_abs(), removed,
      device == Device::cuda ? fmt::format("{:.3f}", 1e3 * result.seconds.attention) : fmt::format("{:.2f}", result.seconds.both()));
}

std::string table_section(std::vector<RecipeResult> const& results, Device device) {
  std::string html =
      "<section><h2>Error of the attention output</h2>\n<p>Relative L2 error of O against exact attention in FP64 on the same inputs, all "
      "heads "
      "and measured rows together. Look for short blue bars: recipes that subtract block means from V.</p>\n";
  html += kFamilyLegend;
  html += fmt::format(
      "<div class='scroll'><table><thead><tr><th>recipe</th><th>relative error</th><th></th><th>SNR, dB</th><th>cosine</th><th>largest "
      "error</th><th>V energy removed</th><th>{}</th></tr></thead><tbody>\n",
      device == Device::cuda ? "attention, ms" : "seconds");
  double const largest = largest_error(results);
  for (RecipeResult const& result : results) html += table_row(result, largest, device);
  return html + "</tbody></table></div></section>\n";
}

std::string head_panel(std::vector<RecipeResult> const& results, std::size_t head, std::string_view title, double largest) {
  constexpr double kLabel = 76, kBars = 200, kLine = 19;
  std::string bars;
  double y = 0;
  for (RecipeResult const& result : results) {
    if (!result.error.empty()) continue;
    double const error = result.heads[head].rel_l2();
    double const width = std::isfinite(error) ? kBars * error / largest : kBars;
    bars += fmt::format(
        "<text class='axis' x='{}' y='{:.0f}' text-anchor='end'>{}</text><rect class='{}' x='{}' y='{:.0f}' width='{:.2f}' height='12' "
        "rx='2'/>"
        "<text x='{:.1f}' y='{:.0f}'>{}</text>\n",
        kLabel - 8, y + 11, result.name(), family(result), kLabel, y + 1, std::max(width, 1.0), kLabel + width + 6, y + 11, percent(error));
    y += kLine;
  }
  return fmt::format("<div><h3>{0}</h3><svg viewBox='0 0 340 {1}' role='img' aria-label='error per recipe, {0}'>\n{2}</svg></div>\n", title,
                     y, bars);
}

std::string heads_section(std::vector<RecipeResult> const& results, std::int64_t batch, std::int64_t num_heads) {
  double largest = 0;
  for (RecipeResult const& result : results) {
    for (ErrorSums const& head : result.heads) {
      if (std::isfinite(head.rel_l2())) largest = std::max(largest, head.rel_l2());
    }
  }
  if (largest == 0) largest = 1;
  auto const heads = static_cast<std::size_t>(batch * num_heads);
  std::string html =
      "<section><h2>Error per head</h2>\n<p>The same error head by head, all on one scale. Look for heads on which the order of the "
      "recipes changes.</p>\n<div "
      "class='heads'>\n";
  for (std::size_t head = 0; head < std::min(heads, kMostHeads); ++head) {
    auto const index = static_cast<std::int64_t>(head);
    std::string const title =
        batch > 1 ? fmt::format("Batch {}, head {}", index / num_heads, index % num_heads) : fmt::format("Head {}", index);
    html += head_panel(results, head, title, largest);
  }
  html += "</div>\n";
  if (heads > kMostHeads)
    html += fmt::format("<p class='note'>The first {} of {} heads are shown; the JSON record has all.</p>\n", kMostHeads, heads);
  return html + "</section>\n";
}

/// Options of the first recipe that smooths V, for the blocks and the grouping that the energy maps show; the default recipe's where none
/// does.
Options smoothing_options(std::vector<RecipeResult> const& results) {
  for (RecipeResult const& result : results) {
    if (result.error.empty() && result.options.v_mean) return result.options;
  }
  return recipe_options(Options{}.recipe);
}

}  // namespace

std::string comparison_page(std::string const& input, Problem const& problem, nlohmann::ordered_json const& shape,
                            std::vector<RecipeResult> const& results, RunArguments const& run) {
  std::string const file = std::filesystem::path(input).filename().string();
  Device const device = parse_device(run.device);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
      "<title>vcattn: {0}</title><style>{1}</style></head>\n<body><main>\n<header><h1>Low-bit attention on {0}</h1><p>How far each recipe "
      "is from exact "
      "attention, and what V-Smooth and ExpCast do to the error.</p></header>\n",
      html_escape(file), kStyle);
  html += conditions(input, problem, shape, run);
  html += table_section(results, device);
  html += heads_section(results, problem.q.batch(), problem.q.num_heads());
  html += energy_section(problem, smoothing_options(results));
  html += expcast_section();
  std::string_view const times = device == Device::cuda ? "Times are of attention on prepared tensors, one call on this GPU."
                                                        : "Times are of this run on this processor; they say nothing about GPUs.";
  return html + fmt::format("<footer>Written by vcattn compare. {}</footer>\n</main></body></html>\n", times);
}

}  // namespace vcattn::cli
