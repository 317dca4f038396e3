#include "report/energy_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/elements.hpp"
#include "report/svg.hpp"
#include "vcattn/grouping.hpp"

namespace vcattn::cli {
namespace {

constexpr std::int64_t kMostHeads = 12;
constexpr std::size_t kMostCells = 300;
constexpr double kFullColour = 1.5;  // energy left that is drawn in full colour

class HeadRows {
 public:
  HeadRows(TensorView const& v, std::int64_t batch, std::int64_t head) : v_(v), base_(batch * v.stride[0] + head * v.stride[2]) {}
  float at(std::int64_t row, std::int64_t channel) const {
    return load_element(v_.data, v_.dtype, base_ + row * v_.stride[1] + channel * v_.stride[3]);
  }

 private:
  TensorView const& v_;
  std::int64_t base_;
};

struct RowSums {
  std::vector<double> sum;  ///< [D]
  double squared = 0;
  /// sum ||x - mean||^2 over `rows` rows.
  double about_mean(std::int64_t rows) const {
    double result = squared;
    for (double const channel : sum) result -= channel * channel / static_cast<double>(rows);
    return std::max(result, 0.0);
  }
};

void add_row(RowSums& sums, HeadRows const& rows, std::int64_t row) {
  for (std::size_t d = 0; d < sums.sum.size(); ++d) {
    double const value = rows.at(row, static_cast<std::int64_t>(d));
    sums.sum[d] += value;
    sums.squared += value * value;
  }
}

/// At most kMostCells means of neighbouring values.
std::vector<double> condensed(std::vector<double> const& values) {
  std::size_t const width = (values.size() + kMostCells - 1) / kMostCells;
  if (width <= 1) return values;
  std::vector<double> result;
  for (std::size_t begin = 0; begin < values.size(); begin += width) {
    std::size_t const end = std::min(begin + width, values.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    result.push_back(sum / static_cast<double>(end - begin));
  }
  return result;
}

std::string strip(std::vector<double> const& energies, double y, std::string_view label, double removed) {
  constexpr double kX = 120, kWidth = 760, kHeight = 20;
  std::vector<double> const cells = condensed(energies);
  double const cell_width = kWidth / static_cast<double>(std::max<std::size_t>(cells.size(), 1));
  std::string svg = fmt::format("<text x='{}' y='{:.0f}' text-anchor='end'>{}</text>", kX - 8, y + 14, label);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    svg += fmt::format("<rect class='heat' x='{:.2f}' y='{}' width='{:.2f}' height='{}' fill-opacity='{:.2f}'/>",
                       kX + cell_width * static_cast<double>(i), y, cell_width, kHeight, std::clamp(cells[i] / kFullColour, 0.02, 1.0));
  }
  svg += fmt::format("<text x='{}' y='{:.0f}' class='axis'>{:.1f} % removed</text>\n", kX + kWidth + 8, y + 14, 100 * removed);
  return svg;
}

std::string scale_legend() {
  std::string svg =
      "<svg viewBox='0 0 1000 22' role='img' aria-label='colour scale'><text x='112' y='14' text-anchor='end'>energy left</text>";
  constexpr int kSteps = 6;
  for (int i = 0; i <= kSteps; ++i) {
    double const value = kFullColour * i / kSteps;
    svg += fmt::format("<rect class='heat' x='{}' y='3' width='24' height='14' fill-opacity='{:.2f}'/><text x='{}' y='14'>{:.2f}</text>",
                       120 + 70 * i, std::max(value / kFullColour, 0.02), 148 + 70 * i, value);
  }
  return svg + "</svg>\n";
}

std::int64_t valid_keys(Problem const& problem, std::int64_t batch) {
  return problem.seqused_k.empty() ? problem.v.seqlen() : problem.seqused_k[static_cast<std::size_t>(batch)];
}

std::string head_figure(Problem const& problem, std::int64_t batch, std::int64_t head, std::span<std::int32_t const> permutation,
                        std::int64_t block, double removed_before, double removed_after) {
  std::int64_t const n_valid = valid_keys(problem, batch);
  std::string svg = strip(energy_left(problem.v, batch, head, {}, n_valid, block), 0, "sequence order", removed_before);
  double height = 24;
  if (!permutation.empty()) {
    svg += strip(energy_left(problem.v, batch, head, permutation, n_valid, block), 24, "grouped", removed_after);
    height = 48;
  }
  std::string const title = problem.v.batch() > 1 ? fmt::format("Batch {}, head {}", batch, head) : fmt::format("Head {}", head);
  return fmt::format("<h3>{}</h3><svg viewBox='0 0 1000 {}' role='img' aria-label='energy of V left per block, {}'>\n{}</svg>\n", title,
                     height, title, svg);
}

}  // namespace

std::vector<double> energy_left(TensorView const& v, std::int64_t batch, std::int64_t head, std::span<std::int32_t const> permutation,
                                std::int64_t n_valid, std::int64_t block) {
  HeadRows const rows(v, batch, head);
  auto const channels = static_cast<std::size_t>(v.head_dim());
  RowSums total{std::vector<double>(channels)};
  std::vector<double> left;
  for (std::int64_t begin = 0; begin < n_valid; begin += block) {
    std::int64_t const end = std::min(begin + block, n_valid);
    RowSums sums{std::vector<double>(channels)};
    for (std::int64_t i = begin; i < end; ++i) add_row(sums, rows, permutation.empty() ? i : permutation[static_cast<std::size_t>(i)]);
    left.push_back(sums.about_mean(end - begin) / static_cast<double>(end - begin));
    total.squared += sums.squared;
    for (std::size_t d = 0; d < channels; ++d) total.sum[d] += sums.sum[d];
  }
  double const mean_energy = n_valid == 0 ? 0 : total.about_mean(n_valid) / static_cast<double>(n_valid);
  for (double& value : left) value = mean_energy == 0 ? 0 : value / mean_energy;
  return left;
}

std::string energy_section(Problem const& problem, Options options) {
  TensorView const& v = problem.v;
  std::vector<std::int32_t> permutation(problem.permutation.begin(), problem.permutation.end());
  if (permutation.empty() && !problem.causal) {
    if (options.order == GroupOrder::automatic) options.order = GroupOrder::chain_sorted;
    permutation = group_values(v, options, problem.seqused_k).permutation;
  }
  auto const before = value_energy_removed(v, {}, options.v_block, problem.seqused_k);
  auto const after = value_energy_removed(v, permutation, options.v_block, problem.seqused_k);

  std::string html = fmt::format(
      "<section><h2>Energy of V that block means leave</h2>\n<p>Each cell is a block of {} keys: the energy of V after its mean is "
      "subtracted, in units "
      "of the head's mean. Look for fainter strips after grouping: the means carry what is missing, and only the rest is "
      "quantised.</p>\n{}",
      options.v_block, scale_legend());
  std::int64_t const heads = v.batch() * v.num_heads();
  for (std::int64_t index = 0; index < std::min(heads, kMostHeads); ++index) {
    auto const of_head = permutation.empty()
                             ? std::span<std::int32_t const>{}
                             : std::span<std::int32_t const>(permutation)
                                   .subspan(static_cast<std::size_t>(index * v.seqlen()), static_cast<std::size_t>(v.seqlen()));
    html += head_figure(problem, index / v.num_heads(), index % v.num_heads(), of_head, options.v_block,
                        before[static_cast<std::size_t>(index)], after[static_cast<std::size_t>(index)]);
  }
  if (heads > kMostHeads) html += fmt::format("<p class='note'>The first {} of {} heads are shown.</p>\n", kMostHeads, heads);
  if (permutation.empty()) html += "<p class='note'>Causal attention keeps the keys in sequence order.</p>\n";
  return html + "</section>\n";
}

}  // namespace vcattn::cli
