#include "report/expcast_curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "io/elements.hpp"
#include "report/svg.hpp"

namespace vcattn::cli {
namespace {

constexpr double kCodesPerNat = 8.0 * std::numbers::log2e;
constexpr int kLargestCode = 126;  // 448

struct Form {
  ExpForm form;
  std::string_view style_class, label;
};

constexpr std::array<Form, 5> kForms{{{ExpForm::exp, "c-exp", "exponential, rounded"},
                                      {ExpForm::paper, "c-paper", "paper"},
                                      {ExpForm::offset126, "c-offset", "offset126"},
                                      {ExpForm::two_line, "c-two", "two_line"},
                                      {ExpForm::affine, "c-affine", "affine"}}};

/// [EQ-E4M3] round to nearest even, saturating.
std::uint8_t encode_probability(double value) {
  int low = 0;
  int high = kLargestCode;
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    (decode_probability(static_cast<std::uint8_t>(middle)) <= value ? low : high) = middle;
  }
  double const below = value - decode_probability(static_cast<std::uint8_t>(low));
  double const above = decode_probability(static_cast<std::uint8_t>(high)) - value;
  bool const up = above < below || (above == below && high % 2 == 0);
  return static_cast<std::uint8_t>(up ? high : low);
}

/// Row constant T for a row maximum of 0.
double row_constant(ExpForm form) {
  if (form == ExpForm::paper) return 119.65;
  if (form == ExpForm::exp) return 8.0 * std::log2(448.0) + 56.0;
  return kLargestCode;
}

/// decoded / exp, up to a constant factor, which cancels in the softmax.
double probability_ratio(ExpForm form, double nats) {
  double const exact = std::exp2((kCodesPerNat * nats + row_constant(form) - 56.0) / 8.0);
  return decode_probability(probability_code(form, nats)) / exact;
}

/// Mean ratio over the upper 6 nats: the factor that cancels.
double common_factor(ExpForm form) {
  constexpr int kSamples = 4096;
  double sum = 0;
  for (int i = 0; i < kSamples; ++i) sum += probability_ratio(form, -6.0 * (i + 0.5) / kSamples);
  return sum / kSamples;
}

Points staircase(ExpForm form, double low) {
  constexpr int kSamples = 2400;
  Points points;
  for (int i = 0; i <= kSamples; ++i) {
    double const nats = low * (1.0 - static_cast<double>(i) / kSamples);
    double const code = probability_code(form, nats);
    bool const corner = !points.empty() && points.back().second != code;
    if (corner) points.emplace_back(nats, points.back().second);
    if (corner || points.empty() || i == kSamples) points.emplace_back(nats, code);
  }
  return points;
}

Points zoomed(Points const& points, double high) {
  Points inside;
  std::ranges::copy_if(points, std::back_inserter(inside), [high](auto const& point) { return point.first <= high; });
  return inside;
}

/// Mean of the relative error over a sliding window of one octave, on which the ripple of the mantissa averages out.
Points mean_error(ExpForm form, double low) {
  constexpr int kWindow = 64;
  constexpr double kHalfOctave = 0.5 * std::numbers::ln2;
  double const factor = common_factor(form);
  Points points;
  for (double nats = low; nats <= -kHalfOctave; nats += 0.04) {
    double sum = 0;
    for (int i = 0; i < kWindow; ++i) sum += probability_ratio(form, nats + kHalfOctave * (2.0 * (i + 0.5) / kWindow - 1.0));
    points.emplace_back(nats, 100.0 * (sum / kWindow / factor - 1.0));
  }
  return points;
}

Points ripple(ExpForm form, double low) {
  constexpr int kSamples = 1200;
  double const factor = common_factor(form);
  Points points;
  for (int i = 0; i <= kSamples; ++i) {
    double const nats = low * (1.0 - static_cast<double>(i) / kSamples);
    points.emplace_back(nats, 100.0 * (probability_ratio(form, nats) / factor - 1.0));
  }
  return points;
}

std::string legend() {
  std::string html = "<p class='legend'>";
  for (Form const& form : kForms) html += fmt::format("<span><i class='{}'></i>{}</span>", form.style_class, form.label);
  return html + "</p>\n";
}

std::string figure(LineChart const& chart, std::string_view title, std::string_view caption) {
  return fmt::format("<figure><h3>{0}</h3>{1}<figcaption>{2}</figcaption></figure>\n", title, chart.svg(title), caption);
}

std::string staircase_figure() {
  LineChart chart(1000, 300, {"score below the row maximum, nats", -14, 0, even_ticks(-14, 0, 2, "{:.0f}")},
                  {"E4M3 code", 0, 128, even_ticks(0, 120, 20, "{:.0f}")});
  for (Form const& form : kForms) chart.add_line(staircase(form.form, -14), form.style_class);
  return figure(
      chart, "The staircase",
      "An E4M3 byte is nearly a logarithm, so a straight line from score to byte replaces the exponential; look for where a line stays "
      "with the grey band of the exponential and where it leaves it.");
}

std::string tail_figure() {
  LineChart chart(490, 300, {"score below the row maximum, nats", -13.5, -8, even_ticks(-13, -8, 1, "{:.0f}")},
                  {"E4M3 code", 0, 30, even_ticks(0, 30, 5, "{:.0f}")});
  for (Form const& form : kForms) chart.add_line(zoomed(staircase(form.form, -13.5), -8), form.style_class);
  return figure(
      chart, "Its tail",
      "Below code 8 the format is linear, not logarithmic: one line reaches zero too early and drops the far keys; look for how long each "
      "form follows the exponential before zero.");
}

std::string mean_error_figure() {
  LineChart chart(490, 300, {"score below the row maximum, nats", -13, 0, even_ticks(-12, 0, 2, "{:.0f}")},
                  {"error of the probability, %", -100, 100, even_ticks(-100, 100, 50, "{:.0f}")});
  for (Form const& form : kForms) chart.add_line(mean_error(form.form, -13), form.style_class);
  return figure(
      chart, "Error per octave",
      "Relative error against exp, averaged over one octave, up to the constant factor that cancels in the softmax; look for the range in "
      "which a form stays at 0 %.");
}

std::string ripple_figure() {
  LineChart chart(1000, 240, {"score below the row maximum, nats", -3, 0, even_ticks(-3, 0, 0.5, "{:.1f}")},
                  {"error, %", -10, 10, even_ticks(-10, 10, 5, "{:.0f}")});
  chart.add_line(ripple(ExpForm::exp, -3), "c-exp");
  chart.add_line(ripple(ExpForm::two_line, -3), "c-two");
  return figure(
      chart, "The ripple",
      "Near the maximum: the saw teeth are the rounding to a 3-bit mantissa, which the exponential has too; the slow wave is the straight "
      "line through the mantissa. Look for its mean of 0 %: it averages out over keys.");
}

}  // namespace

double decode_probability(std::uint8_t code) {
  if (code < 8) return code * 0x1p-9;
  return std::ldexp(1.0 + (code & 7) / 8.0, (code >> 3) - 7);
}

std::uint8_t probability_code(ExpForm form, double nats) {
  double const t = kCodesPerNat * nats + row_constant(form);
  double code = 0;
  switch (form) {
    case ExpForm::exp:
      return encode_probability(std::exp2((t - 56.0) / 8.0));  // [EQ-EXP]
    case ExpForm::affine: {                                    // [EQ-EXPCAST-AFFINE]
      double const fp16_bits = std::max(0.0, std::nearbyint(8192.0 + 128.0 * t));
      return encode_probability(decode_f16(static_cast<std::uint16_t>(fp16_bits)));
    }
    case ExpForm::paper:
      code = std::clamp(std::nearbyint(t), 0.0, 120.0);
      break;  // [EQ-EXPCAST-PAPER]
    case ExpForm::offset126:
      code = std::nearbyint(t);
      break;                   // [EQ-EXPCAST-OFFSET]
    case ExpForm::two_line: {  // [EQ-EXPCAST-TWOLINE]
      double const line = std::nearbyint(t);
      code = std::max(line, std::nearbyint(0.300048828125 * line + 5.0));
      break;
    }
  }
  return static_cast<std::uint8_t>(std::clamp(code, 0.0, static_cast<double>(kLargestCode)));
}

std::string expcast_section() {
  return "<section><h2>ExpCast: a probability byte without an exponential</h2>\n" + legend() + staircase_figure() + "<div class='pair'>" +
         tail_figure() + mean_error_figure() + "</div>\n" + ripple_figure() + "</section>\n";
}

}  // namespace vcattn::cli
