#pragma once

// Line charts as inline SVG. Colours come from the page's style sheet, so that charts follow its light and dark modes.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vcattn::cli {

/// Text with <, >, & and quotes as entities.
std::string html_escape(std::string_view text);

struct Tick {
  double position;
  std::string label;
};

struct Axis {
  std::string title;
  double low, high;
  std::vector<Tick> ticks;
};

/// Evenly spaced ticks first, first + step, ..., last with `format` (fmt, one double).
std::vector<Tick> even_ticks(double first, double last, double step, std::string_view format);

using Points = std::vector<std::pair<double, double>>;

class LineChart {
 public:
  LineChart(double width, double height, Axis x, Axis y);

  /// `style_class` of the page's style sheet names the colour. Points outside the axes are clamped to them.
  void add_line(Points const& points, std::string_view style_class);
  std::string svg(std::string_view description) const;

 private:
  double x_of(double value) const;
  double y_of(double value) const;

  double width_, height_;
  Axis x_, y_;
  std::string body_;
};

}  // namespace vcattn::cli
