#include "report/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace vcattn::cli {

namespace {
constexpr double kLeft = 58, kRight = 14, kTop = 10, kBottom = 42;
}  // namespace

std::string html_escape(std::string_view text) {
  std::string result;
  for (char const c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<Tick> even_ticks(double first, double last, double step, std::string_view format) {
  std::vector<Tick> ticks;
  auto const count = static_cast<int>(std::lround((last - first) / step));
  for (int i = 0; i <= count; ++i) {
    double const position = first + i * step;
    ticks.push_back({position, fmt::format(fmt::runtime(format), position)});
  }
  return ticks;
}

LineChart::LineChart(double width, double height, Axis x, Axis y) : width_(width), height_(height), x_(std::move(x)), y_(std::move(y)) {
  double const bottom = height_ - kBottom;
  for (Tick const& tick : x_.ticks) {
    double const at = x_of(tick.position);
    body_ += fmt::format(
        "<line class='grid' x1='{0:.1f}' x2='{0:.1f}' y1='{1}' y2='{2}'/><text x='{0:.1f}' y='{3}' text-anchor='middle'>{4}</text>\n", at,
        kTop, bottom, bottom + 16, html_escape(tick.label));
  }
  for (Tick const& tick : y_.ticks) {
    double const at = y_of(tick.position);
    body_ += fmt::format(
        "<line class='grid' x1='{0}' x2='{1}' y1='{2:.1f}' y2='{2:.1f}'/><text x='{3}' y='{4:.1f}' text-anchor='end'>{5}</text>\n", kLeft,
        width_ - kRight, at, kLeft - 7, at + 4, html_escape(tick.label));
  }
  body_ += fmt::format("<text class='axis' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n", 0.5 * (kLeft + width_ - kRight),
                       height_ - 6, html_escape(x_.title));
  body_ += fmt::format("<text class='axis' transform='translate(13 {:.1f}) rotate(-90)' text-anchor='middle'>{}</text>\n",
                       0.5 * (kTop + bottom), html_escape(y_.title));
}

double LineChart::x_of(double value) const {
  double const share = (std::clamp(value, x_.low, x_.high) - x_.low) / (x_.high - x_.low);
  return kLeft + share * (width_ - kLeft - kRight);
}

double LineChart::y_of(double value) const {
  double const share = (std::clamp(value, y_.low, y_.high) - y_.low) / (y_.high - y_.low);
  return height_ - kBottom - share * (height_ - kTop - kBottom);
}

void LineChart::add_line(Points const& points, std::string_view style_class) {
  body_ += fmt::format("<polyline class='curve {}' points='", style_class);
  for (auto const& [x, y] : points) body_ += fmt::format("{:.1f},{:.1f} ", x_of(x), y_of(y));
  body_ += "'/>\n";
}

std::string LineChart::svg(std::string_view description) const {
  return fmt::format("<svg viewBox='0 0 {} {}' role='img' aria-label='{}'>\n{}</svg>\n", width_, height_, html_escape(description), body_);
}

}  // namespace vcattn::cli
