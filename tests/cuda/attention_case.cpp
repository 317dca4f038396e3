#include "cuda/attention_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "device/cuda/runtime.hpp"
#include "formats/prepared_layout.hpp"
#include "reference/tile_ordered.hpp"

namespace vcattn::cuda_test {

namespace {

constexpr double kTolerance = 5e-3;  // CONTRIBUTING.md: a back end against the tile-ordered reference
/// Nats. The tensor core drops what lies more than 13 bits below the largest product of its step, small probabilities beside a large one.
constexpr double kLseTolerance = 4e-3;
constexpr unsigned char kPoison = 0xFF;  // NaN in every floating-point format

std::uint32_t base_seed = 1;

std::map<std::string, Worst>& worst_errors() {
  static std::map<std::string, Worst> errors;
  return errors;
}

std::string joined(char const* name, std::vector<std::int32_t> const& values) {
  return values.empty() ? "" : fmt::format(" {}={}", name, fmt::join(values, ","));
}

/// Rows that a code which rounds the other way may move farther than the tolerances: keys of a large share, in short rows.
std::size_t rows_of_another_code(Expected const& expected) {
  std::size_t const rows = expected.lse.size();
  return expected.codes_may_differ && rows >= 8 ? 1 + rows / 500 : 0;
}

struct SquaredRow {
  double error = 0, norm = 0;
};

/// ||a - b||^2 and ||b||^2 of every row of `channels`; infinite where NaN are on one side only.
std::vector<SquaredRow> squared_rows(std::vector<float> const& a, std::vector<double> const& b, std::size_t channels) {
  std::vector<SquaredRow> rows(a.size() / channels);
  for (std::size_t i = 0; i < a.size(); ++i) {
    SquaredRow& row = rows[i / channels];
    auto const x = static_cast<double>(a[i]);
    if (std::isnan(x) && std::isnan(b[i])) continue;
    double const difference = std::isnan(x - b[i]) ? std::numeric_limits<double>::infinity() : x - b[i];
    row.error += difference * difference;
    row.norm += std::isnan(b[i]) ? 0 : b[i] * b[i];
  }
  return rows;
}

/// ||a - b|| / ||b|| without the `left_out` rows of the largest error, which may differ by a quarter.
double relative_error(std::vector<SquaredRow> rows, std::size_t left_out) {
  std::sort(rows.begin(), rows.end(), [](SquaredRow const& x, SquaredRow const& y) { return x.error > y.error; });
  SquaredRow total;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    total.norm += rows[i].norm;
    if (i >= left_out || std::sqrt(rows[i].error) > 0.25 * std::sqrt(rows[i].norm)) total.error += rows[i].error;
  }
  return std::sqrt(total.error) / (total.norm == 0 ? 1.0 : std::sqrt(total.norm));
}

/// |a - b|; infinite where NaN or infinity are on one side only.
double lse_error(float a, double b) {
  auto const x = static_cast<double>(a);
  if (std::isfinite(x) && std::isfinite(b)) return std::abs(x - b);
  return x == b || (std::isnan(x) && std::isnan(b)) ? 0.0 : std::numeric_limits<double>::infinity();
}

/// A key of half the row sum that takes the next code: ln(1 + 1/8) / 2.
constexpr double kLseOfAnotherCode = 0.06;

void expect_close_lse(std::vector<float> const& lse, Expected const& expected, std::string const& where) {
  std::size_t beyond = 0;
  double largest = 0;
  for (std::size_t i = 0; i < lse.size(); ++i) {
    double const error = lse_error(lse[i], expected.lse[i]);
    largest = std::max(largest, error);
    if (error > kLseTolerance) ++beyond;
  }
  EXPECT_LE(largest, expected.codes_may_differ ? kLseOfAnotherCode : kLseTolerance)
      << where << " (infinite: NaN or infinity on one side only)";
  EXPECT_LE(beyond, rows_of_another_code(expected)) << where << ": rows whose lse is farther than " << kLseTolerance;
  Worst::of(expected.codes_may_differ ? "lse where codes may differ, nats" : "lse, nats").see(largest, where);
}

}  // namespace

void set_base_seed(std::uint32_t seed) { base_seed = seed; }
std::uint32_t case_seed(std::uint32_t case_number) { return base_seed * 1'000'003u + case_number; }

Worst& Worst::of(std::string const& what) { return worst_errors()[what]; }

void Worst::see(double error, std::string const& where) {
  if (error < error_) return;
  error_ = error;
  where_ = where;
}

void Worst::print() {
  std::string line;
  for (auto const& [what, worst] : worst_errors()) {
    line += fmt::format("{}{} {:.3g} ({})", line.empty() ? "" : "; ", what, worst.error_, worst.where_);
  }
  fmt::print("worst errors: {}\n", line.empty() ? "none measured" : line);
}

Options options_of(std::string const& text) {
  auto const space = text.find(' ');
  Options options = recipe_options(parse_recipe(text.substr(0, space)));
  if (space != std::string::npos) set_options(options, text.substr(space + 1));
  return options;
}

std::string Case::name() const {
  return fmt::format("{} B{} Sq{} Sk{} H{}/{} D{}{}{}{}{}{}", recipe, sizes.batch, sizes.seqlen_q, sizes.seqlen_kv, sizes.num_heads,
                     sizes.num_heads_kv, sizes.head_dim, causal ? " causal" : "", joined("seqused_k", seqused_k),
                     joined("cu_seqlens_q", cu_seqlens_q), joined("cu_seqlens_k", cu_seqlens_k), with_lse ? "" : " without LSE");
}

Problem Case::problem(OwnedProblem const& owned) const {
  Problem problem = owned.problem();
  problem.causal = causal;
  problem.seqused_k = seqused_k;
  problem.cu_seqlens_q = cu_seqlens_q;
  problem.cu_seqlens_k = cu_seqlens_k;
  return problem;
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}

std::array<std::int64_t, 4> output_shape(Prepared const& prepared) {
  auto const& l = prepared.impl().layout;
  bool const varlen = prepared.impl().varlen;
  return {varlen ? 1 : l.batch, varlen ? l.rows_q : l.rows_q / l.batch, l.num_heads, l.head_dim};
}

std::size_t lse_size(Prepared const& prepared) {
  auto const& l = prepared.impl().layout;
  return static_cast<std::size_t>(l.num_heads * l.rows_q);
}

DeviceOutput::DeviceOutput(Prepared const& prepared)
    : shape_(output_shape(prepared)),
      lse_size_(lse_size(prepared)),
      o_(lse_size_ * static_cast<std::size_t>(shape_[3]) * sizeof(float)),
      lse_(lse_size_ * sizeof(float)) {
  poison();
}

MutableTensorView DeviceOutput::o() const {
  auto const view = nhd_view(nullptr, DType::f32, shape_[0], shape_[1], shape_[2], shape_[3]);
  return {o_.data(), DType::f32, view.shape, view.stride};
}

void DeviceOutput::poison() {
  o_.fill(kPoison);
  lse_.fill(kPoison);
}

Output DeviceOutput::download(Stream stream) const {
  Output output{std::vector<float>(o_.size() / sizeof(float)), std::vector<float>(lse_size_)};
  o_.download(output.o.data(), o_.size(), stream);
  lse_.download(output.lse.data(), lse_.size(), stream);
  return output;
}

Output run(Prepared const& on_device, bool with_lse) {
  DeviceOutput const memory(on_device);
  attention(on_device, memory.o(), with_lse ? memory.lse() : std::span<float>{});
  Output output = memory.download();
  if (!with_lse) output.lse.clear();
  return output;
}

Output run_on_device(Prepared const& prepared, bool with_lse) { return run(to_cuda(prepared), with_lse); }

namespace {

/// Query tiles that one launch serves, and where it cuts those of its last wave (docs/kernels/sm90a.md), stated anew.
class Launch {
 public:
  Launch(Prepared::Impl const& impl, std::int64_t tile_rows, std::function<bool(std::int64_t, std::int64_t)> const& serves)
      : tile_rows_(tile_rows) {
    auto const& l = impl.layout;
    std::int64_t items = 0;
    bool same_keys = true;
    for (std::int64_t b = 0; b < l.batch; ++b) {
      auto const& s = impl.view().sequences()[static_cast<std::size_t>(b)];
      for (std::int64_t h = 0; h < l.num_heads; ++h) {
        if (!serves(b, h) || s.seqlen_q == 0) continue;
        first_item_[{b, h}] = items;
        if (items > 0 && s.tiles_kv != key_tiles_) same_keys = false;
        key_tiles_ = s.tiles_kv;
        items += formats::ceil_div(s.seqlen_q, tile_rows);
      }
    }
    std::int64_t const ctas = device::cuda::multiprocessors();
    std::int64_t const last = items % ctas;
    std::int64_t const total = last * key_tiles_;
    if (last == 0 || !same_keys || l.causal != 0 || key_tiles_ - total / ctas < 24) return;
    first_split_ = items - last;
    for (std::int64_t cta = 0; cta < ctas; ++cta) {
      std::int64_t const begin = cta * (total / ctas) + std::min(cta, total % ctas);
      begins_.insert(begin / key_tiles_ * key_tiles_ + begin % key_tiles_ / 16 * 16);
    }
  }

  bool serves(std::int64_t b, std::int64_t head) const { return first_item_.count({b, head}) != 0; }
  bool starts_part(std::int64_t b, std::int64_t head, std::int64_t row, std::int64_t key_tile) const {
    std::int64_t const item = first_item_.at({b, head}) + row / tile_rows_;
    return item >= first_split_ && begins_.count((item - first_split_) * key_tiles_ + key_tile) != 0;
  }

 private:
  std::int64_t tile_rows_;
  std::int64_t key_tiles_ = 0;
  std::int64_t first_split_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> first_item_;
  std::set<std::int64_t> begins_;
};

reference::StartsPart starts_part(Prepared::Impl const& impl) {
  auto const& l = impl.layout;
  auto const is_f16 = [&](std::int64_t b, std::int64_t h) {
    return impl.options.qk == QkFormat::e4m3 && impl.options.qk_scaling == QkScaling::unit && impl.options.scores != ScoreFormat::f32 &&
           formats::allows_f16_scores(impl.options.exp_form) &&
           impl.view().section<formats::ScoreVariant>(l.score_variant)[b * l.num_heads + h] == formats::ScoreVariant::f16;
  };
  Launch const f16(impl, 192, is_f16);
  Launch const others(impl, 128, [&](std::int64_t b, std::int64_t h) { return !is_f16(b, h); });
  return [f16, others](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key_tile) {
    return (f16.serves(b, h) ? f16 : others).starts_part(b, h, row, key_tile);
  };
}

}  // namespace

Expected expected_result(Prepared const& prepared) {
  auto const& impl = prepared.impl();
  auto result = reference::tile_ordered_attention(impl.layout, impl.options, impl.slab, impl.varlen, reference::ScoreArithmetic::sm90,
                                                  starts_part(impl));
  // Exponentials are approximate, and sums of E4M3 products with any descale are rounded inside the tensor cores.
  bool const rounded_scores = impl.options.qk == QkFormat::e4m3 && impl.options.qk_scaling != QkScaling::unit;
  return {std::move(result.o), std::move(result.lse), rounded_scores || impl.options.exp_form == ExpForm::exp};
}

double rms_difference(std::vector<double> const& a, std::vector<double> const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

void expect_close(Output const& output, Expected const& expected, std::string const& where) {
  ASSERT_EQ(output.o.size(), expected.o.size()) << where;
  if (output.o.empty()) return;
  std::size_t const channels = output.o.size() / expected.lse.size();
  double const error = relative_error(squared_rows(output.o, expected.o, channels), rows_of_another_code(expected));
  EXPECT_LE(error, kTolerance) << where << " (infinite: NaN on one side only)";
  Worst::of("o against tile-ordered, rel. L2").see(error, where);
  if (output.lse.empty()) return;
  ASSERT_EQ(output.lse.size(), expected.lse.size()) << where;
  expect_close_lse(output.lse, expected, where);
}

}  // namespace vcattn::cuda_test
