#include "trainkit/scale_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "trainkit/core/format.h"

namespace trainkit::tool {
namespace {

constexpr double kLeft = 72, kRight = 776, kTop = 72, kBottom = 392;
constexpr double kHeading = 28, kSubheading = 52;  // baselines of the title, and of the values' name and the legend
/// Colours that people with colour blindness can distinguish (Okabe and Ito, 2008).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};

/// The range of an axis, with round numbers at its marks.
struct Axis {
  double low = 0, high = 1, mark = 0.5;

  /// Returns a range that contains [low, high], with about `marks` marks at 1, 2 or 5 times a power of ten.
  static Axis around(double low, double high, int marks) {
    if (!(low < high)) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
    const double raw = (high - low) / marks, power = std::pow(10, std::floor(std::log10(raw)));
    const double mark = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
    return {std::floor(low / mark) * mark, std::ceil(high / mark) * mark, mark};
  }
  double share(double value) const { return (value - low) / (high - low); }
};

struct Plot {
  Axis x, y;
  std::string out = {};
  double px(int64_t devices) const { return kLeft + (kRight - kLeft) * x.share(static_cast<double>(devices)); }
  double py(double value) const { return kBottom - (kBottom - kTop) * y.share(value); }

  template <class... Arguments>
  void add(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out), text, std::forward<Arguments>(arguments)...);
    out += '\n';
  }
};

/// Formats a mark of an axis in at most nine characters: with the digits that distinguish it from the next mark.
std::string mark_text(double value, double mark) {
  if (std::abs(value) < mark / 2) return "0";
  if (std::abs(value) >= 1e6) return std::abs(value) < 1e15 ? format_count(value) : fmt::format("{:.1e}", value);
  const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(mark) + 1e-9)));
  return digits > 6 ? fmt::format("{:.1e}", value) : fmt::format("{:.{}f}", value, digits);
}

void draw_axes(Plot& plot, std::string_view value_name) {
  plot.add(R"(<text x="{}" y="{}" font-weight="600">{}</text>)", kLeft, kSubheading, value_name);
  for (int i = 0; plot.y.low + i * plot.y.mark <= plot.y.high + plot.y.mark / 2; ++i) {
    const double value = plot.y.low + i * plot.y.mark, y = plot.py(value);
    plot.add(R"(<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" stroke="#e4e4e4"/>)", kLeft, y, kRight, y);
    plot.add(R"(<text x="{}" y="{:.1f}" text-anchor="end" fill="#555">{}</text>)", kLeft - 8, y + 4,
             mark_text(value, plot.y.mark));
  }
  // The lines fill the width, so that the axis may end before its next mark.
  for (int i = 0; plot.x.low + i * plot.x.mark <= plot.x.high + plot.x.mark * 1e-6; ++i) {
    const double devices = plot.x.low + i * plot.x.mark, x = kLeft + (kRight - kLeft) * plot.x.share(devices);
    plot.add(R"(<line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}" stroke="#999"/>)", x, kBottom, x, kBottom + 5);
    plot.add(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#555">{}</text>)", x, kBottom + 20,
             devices < 10'000 ? fmt::format("{:.4g}", devices) : format_count(devices));
  }
  plot.add(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#999"/>)", kLeft, kBottom, kRight, kBottom);
  plot.add(R"(<text x="{}" y="{}" text-anchor="middle" fill="#555">devices</text>)", (kLeft + kRight) / 2,
           kBottom + 42);
}

void draw_line(Plot& plot, const PlotLine& line, const char* color) {
  std::string path;
  for (const auto& [devices, value] : line.points) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", plot.px(devices), plot.py(value));
  }
  plot.add(R"(<path class="{}" d="{}" fill="none" stroke="{}" stroke-width="2.2" stroke-linejoin="round"/>)", line.name,
           path, color);
  for (const auto& [devices, value] : line.points) {
    plot.add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)", plot.px(devices), plot.py(value), color);
  }
}

void draw_legend(Plot& plot, const std::vector<PlotLine>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    text += fmt::format(R"(<tspan dx="{}" font-weight="900" fill="{}">—</tspan> {} {})", i == 0 ? 0 : 20,
                        kColors[i % std::size(kColors)], lines[i].name, format_number(lines[i].points.back().second));
  }
  plot.add(R"(<text x="{}" y="{}" text-anchor="end">{}</text>)", kRight, kSubheading, text);
}

}  // namespace

std::string draw_plot(std::string_view title, std::string_view value, const std::vector<PlotLine>& lines) {
  double low = std::numeric_limits<double>::infinity(), high = -low, first = low, last = high;
  for (const PlotLine& line : lines) {
    for (const auto& [devices, y] : line.points) {
      first = std::min(first, static_cast<double>(devices)), last = std::max(last, static_cast<double>(devices));
      low = std::min(low, y), high = std::max(high, y);
    }
  }
  Plot plot{.x = Axis::around(first <= last * 0.1 ? 0 : first, last, 8), .y = Axis::around(low, high, 6)};
  plot.x.high = std::max(last, plot.x.low + plot.x.mark / 2);  // the lines fill the width
  plot.add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 450" width="800" height="450" )"
           R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)");
  plot.add(R"(<rect width="800" height="450" fill="#fff"/>)");
  plot.add(R"(<text x="{}" y="{}" class="title" font-size="18" font-weight="600">{}</text>)", kLeft, kHeading, title);
  draw_axes(plot, value);
  for (size_t i = 0; i < lines.size(); ++i) draw_line(plot, lines[i], kColors[i % std::size(kColors)]);
  draw_legend(plot, lines);
  plot.add("</svg>");
  return plot.out;
}

}  // namespace trainkit::tool
