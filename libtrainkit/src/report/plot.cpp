#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>

#include "logging/field_names.h"
#include "core/base/format_number.h"
#include "report/markup.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/report/summary.h"

namespace trainkit {
namespace {

namespace fields = detail::fields;

constexpr double kLeft = 72, kRight = 776, kTop = 72, kBottom = 392;
constexpr double kHeading = 28, kSubheading = 52;  // baselines of the title, and of metric and legend
constexpr size_t kLongestTitle = 60;               // bytes; fits into the width
/// Colours that people with colour blindness can distinguish (Okabe and Ito, 2008).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};

struct Point {
  double step, value;
};

struct Series {
  std::string split;
  std::vector<Point> points;
};

std::vector<Series> collect(const std::vector<LogRecord>& records, std::string_view metric) {
  std::vector<Series> all;
  for (const LogRecord& record : records) {
    const double* value = record.find(metric);
    if (!value) continue;
    auto series = std::find_if(all.begin(), all.end(), [&](const Series& s) { return s.split == record.split; });
    if (series == all.end()) series = all.insert(all.end(), {record.split, {}});
    series->points.push_back({static_cast<double>(record.step), *value});
  }
  return all;
}

/// Reduces the points to one per pixel: the mean of its finite values. A pixel without finite values stays non-finite.
std::vector<Point> average_per_pixel(const std::vector<Point>& points) {
  const size_t pixels = static_cast<size_t>(kRight - kLeft);
  if (points.size() <= pixels) return points;
  std::vector<Point> thinned;
  for (size_t pixel = 0; pixel < pixels; ++pixel) {
    const size_t begin = pixel * points.size() / pixels, end = (pixel + 1) * points.size() / pixels;
    Point sum{0, 0};
    int finite = 0;
    for (size_t i = begin; i < end; ++i) {
      sum.step += points[i].step;
      if (std::isfinite(points[i].value)) sum.value += points[i].value, ++finite;
    }
    const double count = static_cast<double>(end - begin);
    thinned.push_back({sum.step / count, finite ? sum.value / finite : std::numeric_limits<double>::quiet_NaN()});
  }
  return thinned;
}

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

struct Chart {
  Axis x, y;
  std::string out;
  double px(double step) const { return kLeft + (kRight - kLeft) * x.share(step); }
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
  if (std::abs(value) >= 1e6) return std::abs(value) < 1e15 ? detail::format_count(value) : fmt::format("{:.1e}", value);
  const int digits = std::max(0, static_cast<int>(-std::floor(std::log10(mark) + 1e-9)));
  return digits > 6 ? fmt::format("{:.1e}", value) : fmt::format("{:.{}f}", value, digits);
}

void draw_axes(Chart& chart, std::string_view metric, std::string_view x_label) {
  chart.add(R"(<text x="{}" y="{}" font-weight="600">{}</text>)", kLeft, kSubheading, svg_text(metric));
  for (int i = 0; chart.y.low + i * chart.y.mark <= chart.y.high + chart.y.mark / 2; ++i) {
    const double value = chart.y.low + i * chart.y.mark, y = chart.py(value);
    chart.add(R"(<line x1="{}" y1="{:.1f}" x2="{}" y2="{:.1f}" stroke="#e4e4e4"/>)", kLeft, y, kRight, y);
    chart.add(R"(<text x="{}" y="{:.1f}" text-anchor="end" fill="#555">{}</text>)", kLeft - 8, y + 4,
              mark_text(value, chart.y.mark));
  }
  // The curve fills the width, so that the axis may end before its next mark.
  for (int i = 0; chart.x.low + i * chart.x.mark <= chart.x.high + chart.x.mark * 1e-6; ++i) {
    const double step = chart.x.low + i * chart.x.mark, x = chart.px(step);
    chart.add(R"(<line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}" stroke="#999"/>)", x, kBottom, x, kBottom + 5);
    chart.add(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#555">{}</text>)", x, kBottom + 20,
              step < 10'000 ? fmt::format("{:.4g}", step) : detail::format_count(step));
  }
  chart.add(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="#999"/>)", kLeft, kBottom, kRight, kBottom);
  chart.add(R"(<text x="{}" y="{}" text-anchor="middle" fill="#555">{}</text>)", (kLeft + kRight) / 2, kBottom + 42,
            svg_text(x_label));
}

void draw_series(Chart& chart, const Series& series, const char* color, bool evaluation) {
  std::string line;
  bool drawing = false;
  const std::vector<Point> points = average_per_pixel(series.points);
  for (const Point& point : points) {
    if (!std::isfinite(point.value)) {
      chart.add(R"(<text class="gap" x="{:.1f}" y="{}" text-anchor="middle" font-weight="700" fill="{}">×</text>)",
                chart.px(point.step), kBottom - 3, color);
    } else {
      line += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", chart.px(point.step), chart.py(point.value));
    }
    drawing = std::isfinite(point.value);
  }
  if (!line.empty()) {
    chart.add(R"(<path class="{}" d="{}" fill="none" stroke="{}" stroke-width="{}" stroke-linejoin="round"/>)",
              svg_text(series.split), line, color, evaluation ? 2.2 : 1.5);
  }
  if (!evaluation || points.size() > 60) return;
  for (const Point& point : points) {
    if (!std::isfinite(point.value)) continue;
    chart.add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)", chart.px(point.step), chart.py(point.value),
              color);
  }
}

/// Formats "val 1.4697 (best 1.4601 at step 1800)".
std::string legend_text(const Series& series, bool evaluation) {
  std::string text = svg_text(series.split) + " " + detail::format_number(series.points.back().value);
  const Point* best = nullptr;
  for (const Point& point : series.points) {
    if (std::isfinite(point.value) && (!best || point.value < best->value)) best = &point;
  }
  if (evaluation && best && series.points.size() > 1) {
    text += fmt::format(" (lowest {} at step {:.0f})", detail::format_number(best->value), best->step);
  }
  return text;
}

void draw_legend(Chart& chart, const std::vector<Series>& all, bool of_a_run) {
  std::string text;
  for (size_t i = 0; i < all.size(); ++i) {
    text += fmt::format(R"(<tspan dx="{}" font-weight="900" fill="{}">—</tspan> {})", i == 0 ? 0 : 20,
                        kColors[i % std::size(kColors)], legend_text(all[i], of_a_run && all[i].split != "train"));
  }
  chart.add(R"(<text x="{}" y="{}" text-anchor="end">{}</text>)", kRight, kSubheading, text);
}

}  // namespace

std::string svg_text(std::string_view text, size_t max_bytes) {
  return detail::escape_markup(escape_text(text, max_bytes));
}

std::string plot_svg(const std::vector<LogRecord>& records, std::string_view metric, std::string_view x_label,
                     std::string_view title) {
  const std::vector<Series> all = collect(records, metric);
  double low = std::numeric_limits<double>::infinity(), high = -low, first = low, last = high;
  for (const Series& series : all) {
    for (const Point& point : series.points) {
      first = std::min(first, point.step), last = std::max(last, point.step);
      if (std::isfinite(point.value)) low = std::min(low, point.value), high = std::max(high, point.value);
    }
  }
  if (!std::isfinite(low)) low = 0, high = 1;
  if (!std::isfinite(first)) first = 0, last = 1;
  Chart chart{.x = Axis::around(first <= last * 0.1 ? 0 : first, last, 8), .y = Axis::around(low, high, 6), .out = {}};
  chart.x.high = std::max(last, chart.x.low + chart.x.mark / 2);  // the curve fills the width
  chart.add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 450" width="800" height="450" )"
            R"(font-family="Helvetica, Arial, sans-serif" font-size="12">)");
  chart.add(R"(<rect width="800" height="450" fill="#fff"/>)");
  chart.add(R"(<text x="{}" y="{}" class="title" font-size="18" font-weight="600">{}</text>)", kLeft, kHeading,
            svg_text(title.empty() ? metric : title, kLongestTitle));
  draw_axes(chart, metric, x_label);
  for (size_t i = 0; i < all.size(); ++i) {
    draw_series(chart, all[i], kColors[i % std::size(kColors)], all[i].split != "train");
  }
  draw_legend(chart, all, x_label == "step");
  chart.add("</svg>");
  return chart.out;
}

absl::Status write_loss_plot(const std::string& output_dir) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<LogRecord> records, read_jsonl(output_dir + "/metrics.jsonl"));
  // The folder is the run's name: its last two parts, as in "runs/hsi".
  const std::filesystem::path folder = std::filesystem::path(output_dir + "/.").lexically_normal().parent_path();
  const std::string parent = folder.parent_path().filename().string();
  const std::string name = (parent.empty() ? "" : parent + "/") + folder.filename().string();
  return write_file_atomically(Fs::posix(), output_dir + "/loss.svg", plot_svg(records, fields::kLoss, "step", name));
}

}  // namespace trainkit
