#include "report/report_chart.h"

#include <absl/strings/str_replace.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/markup.h"
#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

/// Size of the drawing. It is stretched to the figure; only lines and dots of fixed width are in it.
constexpr double kWidth = 1000, kHeight = 300;

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<double> marks;

  double share(double value) const {
    const double at = logarithmic ? std::log10(value) : value;
    return std::clamp((at - low) / (high - low), 0.0, 1.0);
  }
};

/// Returns an axis over [low, high] with about `count` marks at 1, 2 or 5 times a power of ten. `rounds` extends the
/// axis to marks.
Axis linear_axis(double low, double high, int count, bool rounds) {
  // Rounding alone is no range: marks of its size would not change the value that they are added to.
  if (const double most = std::max(std::abs(low), std::abs(high)); !(high - low > 1e-9 * most)) {
    low -= 0.1 * most;
    high += most == 0 ? 1 : 0.1 * most;
  }
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double mark = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
  Axis axis{.low = low, .high = high, .logarithmic = false, .marks = {}};
  if (rounds) axis.low = std::floor(low / mark) * mark, axis.high = std::ceil(high / mark) * mark;
  for (double i = std::ceil(axis.low / mark - 1e-9); i * mark <= axis.high + mark * 1e-9; ++i) {
    axis.marks.push_back(i == 0 ? 0 : i * mark);
  }
  return axis;
}

/// Returns the unit of a size: 1, 1024, 1024^2, ...
double size_unit(double bytes) {
  double unit = 1;
  while (bytes >= 1024 * unit && unit < 0x1p40) unit *= 1024;
  return unit;
}

/// Returns an axis of time with marks at whole seconds, minutes or hours.
Axis time_axis(double low, double high) {
  constexpr double kSteps[] = {1,    2,    5,    10,   20,    30,    60,    120,   300,    600,
                               1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800};
  Axis axis{.low = low, .high = std::max(high, low + 1), .logarithmic = false, .marks = {}};
  const double wanted = (axis.high - axis.low) / 5;
  const auto found =
      std::find_if(std::begin(kSteps), std::prev(std::end(kSteps)), [&](double s) { return s >= wanted; });
  for (double at = std::ceil(low / *found) * *found; at <= axis.high; at += *found) axis.marks.push_back(at);
  return axis;
}

Axis logarithmic_axis(double low, double high) {
  Axis axis{.low = std::floor(std::log10(low)), .high = std::ceil(std::log10(high)), .logarithmic = true, .marks = {}};
  const double every = std::max(1.0, std::ceil((axis.high - axis.low) / 5));
  for (double power = axis.low; power <= axis.high; power += every) axis.marks.push_back(std::pow(10, power));
  return axis;
}

/// Lowest and highest finite value. Leaves out values whose differences may overflow.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (std::abs(value) < 1e300) low = std::min(low, value), high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
};

/// A chart with its axes and thinned series.
class Drawing {
 public:
  Drawing(const Chart& chart, size_t most_points) : chart_(chart) {
    for (const ChartSeries& series : chart.series) {
      ChartSeries thinned = series;
      thinned.points = thin(series.points, most_points, series.kind == ChartSeries::Kind::kRaw);
      for (const ChartPoint& point : thinned.points) xs_.add(point.x), ys_.add(point.y);
      if (!thinned.points.empty()) series_.push_back(std::move(thinned));
    }
    for (const ChartBand& band : chart.bands) xs_.add(band.from), xs_.add(band.to);
    if (xs_.is_empty() || ys_.is_empty()) return;
    constexpr double kLongest = 3e8;  // ten years: further marks of weeks would be too many
    const bool is_time = chart.x_format == ValueFormat::kDuration && xs_.high < kLongest;
    const double first = xs_.low <= 0.1 * xs_.high ? 0 : xs_.low;
    x_ = is_time ? time_axis(first, xs_.high) : linear_axis(first, xs_.high, 6, /*rounds=*/false);
    const bool is_log = chart.may_be_logarithmic && ys_.low > 0 && ys_.high > 100 * ys_.low;
    if (is_log) {
      y_ = logarithmic_axis(ys_.low, ys_.high);
    } else {
      const double low = chart.from_zero ? std::min(0.0, ys_.low) : ys_.low;
      const double unit = chart.y_format == ValueFormat::kSize ? size_unit(ys_.high) : 1;
      y_ = linear_axis(low / unit, ys_.high / unit, 4, /*rounds=*/true);
      y_.low *= unit, y_.high *= unit;
      for (double& mark : y_.marks) mark *= unit;
    }
  }

  bool is_empty() const { return xs_.is_empty() || ys_.is_empty(); }

  std::string figure() const {
    return fmt::format("<figure class=\"chart\"><figcaption><b>{}</b>{}</figcaption>\n{}{}{}{}</figure>\n",
                       html(chart_.title), legend(), plot(),
                       chart_.note.empty() ? "" : fmt::format("<p class=\"note\">{}</p>", html(chart_.note)), table(),
                       data());
  }

 private:
  double px(double x) const { return kWidth * x_.share(x); }
  double py(double y) const { return kHeight * (1 - y_.share(y)); }

  std::string legend() const {
    std::string out;
    for (const ChartSeries& series : series_) {
      out += fmt::format("<span class=\"key {}{}\">{}</span>", color_class(series.color),
                         series.kind == ChartSeries::Kind::kRaw ? " raw" : "", html(series.name));
    }
    return "<span class=\"legend\">" + out + "</span>";
  }

  std::string line_of(const ChartSeries& series) const {
    std::string path, dots, gaps;
    bool drawing = false;
    for (const ChartPoint& point : series.points) {
      const bool finite = std::isfinite(point.y) && (!y_.logarithmic || point.y > 0);
      const double x = px(point.x);
      if (finite) {
        path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", x, py(point.y));
        if (!drawing) path += "h0";  // a single value between gaps is a dot
        dots += fmt::format("M{:.1f} {:.1f}h0", x, py(point.y));
      } else {
        gaps += fmt::format("M{:.1f} {:.1f}h0", x, kHeight);
      }
      drawing = finite;
    }
    const bool is_raw = series.kind == ChartSeries::Kind::kRaw;
    std::string out =
        fmt::format("<path class=\"line {}{}\" d=\"{}\"/>", color_class(series.color), is_raw ? " raw" : "", path);
    if (series.kind == ChartSeries::Kind::kPoints && series.points.size() <= 60) {
      out += fmt::format("<path class=\"dots {}\" d=\"{}\"/>", color_class(series.color), dots);
    }
    if (!gaps.empty()) out += fmt::format("<path class=\"gap\" d=\"{}\"/>", gaps);
    return out;
  }

  std::string marks() const {
    std::string out;
    for (const ChartBand& band : chart_.bands) {
      out += fmt::format("<rect class=\"band\" x=\"{:.1f}\" y=\"0\" width=\"{:.1f}\" height=\"{}\"/>", px(band.from),
                         std::max(px(band.to) - px(band.from), 1.0), kHeight);
    }
    for (const ChartMark& mark : chart_.marks) {
      out += mark.has_y ? fmt::format("<path class=\"mark\" d=\"M{:.1f} {:.1f}h0\"/>", px(mark.x), py(mark.y))
                        : fmt::format("<path class=\"rule\" d=\"M{:.1f} 0V{}\"/>", px(mark.x), kHeight);
    }
    return out;
  }

  std::string plot() const {
    std::string svg, labels;
    for (const double mark : y_.marks) {
      const double y = py(mark);
      svg += fmt::format("<path class=\"grid\" d=\"M0 {:.1f}H{}\"/>", y, kWidth);
      labels += fmt::format("<span class=\"y\" style=\"top:{:.2f}%\">{}</span>", 100 * y / kHeight,
                            html(format_value(mark, chart_.y_format)));
    }
    for (const double mark : x_.marks) {
      labels += fmt::format("<span class=\"x\" style=\"left:{:.2f}%\">{}</span>", 100 * x_.share(mark),
                            html(format_value(mark, chart_.x_format)));
    }
    svg += marks();
    for (const ChartSeries& series : series_) svg += line_of(series);
    return fmt::format(
        "<div class=\"plot\" tabindex=\"0\" role=\"img\" aria-label=\"{}\"><svg viewBox=\"0 0 {} {}\" "
        "preserveAspectRatio=\"none\" aria-hidden=\"true\">{}</svg><div class=\"labels\" aria-hidden=\"true\">{}</div>"
        "<div class=\"cursor\" hidden></div><div class=\"tip\" hidden></div></div>"
        "<p class=\"xlabel\" aria-hidden=\"true\">{}</p>\n",
        html(spoken()), kWidth, kHeight, svg, labels, html(chart_.x_label));
  }

  /// Describes the chart for readers who do not see it.
  std::string spoken() const {
    std::string text = chart_.title + " by " + chart_.x_label + ".";
    for (const ChartSeries& series : series_) {
      Range range;
      for (const ChartPoint& point : series.points) range.add(point.y);
      if (range.is_empty() || series.kind == ChartSeries::Kind::kRaw) continue;
      const ChartPoint& last = series.points.back();
      text += fmt::format(" {}: {} at {} {}; lowest {}, highest {}.", series.name,
                          format_value(last.y, chart_.y_format), chart_.x_label, format_value(last.x, chart_.x_format),
                          format_value(range.low, chart_.y_format), format_value(range.high, chart_.y_format));
    }
    return text + " The arrow keys move through the values.";
  }

  /// Returns the x of up to 17 recorded points of each series, evenly chosen with the first and the last.
  std::vector<double> table_xs() const {
    constexpr size_t kSteps = 16;
    std::vector<double> xs;
    for (const ChartSeries& series : chart_.series) {
      const size_t count = series.points.size(), steps = std::min(kSteps, std::max<size_t>(count, 1) - 1);
      for (size_t i = 0; i < std::min(count, steps + 1); ++i) {
        xs.push_back(series.points[steps == 0 ? 0 : i * (count - 1) / steps].x);
      }
    }
    std::sort(xs.begin(), xs.end());
    xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
    return xs;
  }

  /// The recorded values at table_xs().
  std::string table() const {
    std::string head = fmt::format("<th scope=\"col\">{}</th>", html(chart_.x_label)), rows;
    for (const ChartSeries& series : chart_.series) {
      if (!series.points.empty()) head += fmt::format("<th scope=\"col\">{}</th>", html(series.name));
    }
    for (const double x : table_xs()) {
      rows += fmt::format("<tr><th scope=\"row\">{}</th>", html(format_value(x, chart_.x_format)));
      for (const ChartSeries& series : chart_.series) {
        if (series.points.empty()) continue;
        const auto found = std::lower_bound(series.points.begin(), series.points.end(), x,
                                            [](const ChartPoint& point, double at) { return point.x < at; });
        rows += found == series.points.end() || found->x != x
                    ? "<td></td>"
                    : fmt::format("<td>{}</td>", html(format_value(found->y, chart_.y_format)));
      }
      rows += "</tr>";
    }
    return fmt::format(
        "<details><summary>Values of {}</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
        "aria-label=\"Values of {}\"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
        "</details>",
        html(chart_.title), html(chart_.title), head, rows);
  }

  /// The values for the script, as JSON.
  std::string data() const {
    using Json = nlohmann::ordered_json;
    const auto rounded = [](double value, int digits) -> Json {
      if (!std::isfinite(value)) return nullptr;
      return std::stod(fmt::format("{:.{}g}", value, digits));
    };
    Json json = {{"x", {x_.low, x_.high}},
                 {"xf", static_cast<int>(chart_.x_format)},
                 {"yf", static_cast<int>(chart_.y_format)},
                 {"y", {y_.low, y_.high, y_.logarithmic}},
                 {"xl", chart_.x_label},
                 {"s", Json::array()},
                 {"m", Json::array()}};
    for (const ChartSeries& series : series_) {
      Json points = Json::array();
      for (const ChartPoint& point : series.points) {
        points.push_back(Json::array({rounded(point.x, 9), rounded(point.y, 5)}));
      }
      json["s"].push_back({{"n", format_text(series.name)},
                           {"c", color_class(series.color)},
                           {"r", series.kind == ChartSeries::Kind::kRaw},
                           {"p", points}});
    }
    for (const ChartMark& mark : chart_.marks)
      json["m"].push_back(Json::array({mark.x, mark.x, format_text(mark.label)}));
    for (const ChartBand& band : chart_.bands) {
      json["m"].push_back(Json::array({band.from, band.to, format_text(band.label)}));
    }
    std::string text;
    for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
      c == '<' ? text.append("\\u003c") : text.append(1, c);  // cannot end the script element
    }
    return "<script type=\"application/json\">" + text + "</script>";
  }

  const Chart& chart_;
  std::vector<ChartSeries> series_;
  Range xs_, ys_;
  Axis x_, y_;
};

}  // namespace

std::string html(std::string_view text) {
  return absl::StrReplaceAll(escape_markup(format_text(text)), {{"'", "&#39;"}});
}

std::string color_class(int color) {
  const int dash = color / kChartColors % 3;
  return fmt::format("c{}{}", color % kChartColors, dash == 0 ? "" : fmt::format(" d{}", dash));
}

std::string format_value(double value, ValueFormat format) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  switch (format) {
    case ValueFormat::kCount:
      return format_count(value);
    case ValueFormat::kSize:
      return format_size(static_cast<int64_t>(std::clamp(value, -9e18, 9e18)));
    case ValueFormat::kShare:
      return fmt::format("{:.4g}%", 100 * value);
    case ValueFormat::kSetting:
      return fmt::format("{:.3g}", value);
    case ValueFormat::kStep:
      return std::abs(value) < 1e6 ? fmt::format("{:.6g}", value) : format_count(value);
    case ValueFormat::kDuration:
      return format_duration(value);
    case ValueFormat::kNumber:
      break;
  }
  return std::abs(value) >= 1e-3 && std::abs(value) < 1e5 ? fmt::format("{:.5g}", value) : format_number(value);
}

std::vector<ChartPoint> thin(const std::vector<ChartPoint>& points, size_t most, bool keep_extremes) {
  if (points.size() <= most) return points;
  const size_t stretches = std::max<size_t>(keep_extremes ? most / 2 : most, 1);
  std::vector<ChartPoint> thinned;
  for (size_t i = 0; i < stretches; ++i) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(i * points.size() / stretches),
               end = points.begin() + static_cast<ptrdiff_t>((i + 1) * points.size() / stretches);
    const ChartPoint *low = nullptr, *high = nullptr;
    double sum_x = 0, sum_y = 0, finite = 0;
    for (auto point = begin; point != end; ++point) {
      sum_x += point->x;
      if (!std::isfinite(point->y)) continue;
      if (!low || point->y < low->y) low = &*point;
      if (!high || point->y > high->y) high = &*point;
      sum_y += point->y, ++finite;
    }
    const double x = sum_x / static_cast<double>(end - begin);
    if (finite == 0) {
      thinned.push_back({x, kNan});
    } else if (keep_extremes) {
      thinned.push_back(low->x <= high->x ? *low : *high);
      thinned.push_back(low->x <= high->x ? *high : *low);
    } else {
      thinned.push_back({x, sum_y / finite});
    }
  }
  return thinned;
}

std::vector<ChartPoint> smooth(const std::vector<ChartPoint>& points) {
  const size_t reach = points.size() / 40 + 1;
  // Sums of the finite values up to each point, so that a window costs one subtraction.
  std::vector<double> sums = {0}, counts = {0};
  for (const ChartPoint& point : points) {
    const bool finite = std::isfinite(point.y);
    sums.push_back(sums.back() + (finite ? point.y : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  std::vector<ChartPoint> smoothed;
  smoothed.reserve(points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    // The same number on both sides, so that the ends are not biased.
    const size_t side = std::min({reach, i, points.size() - 1 - i});
    const size_t begin = i - side, end = i + side + 1;
    const double count = counts[end] - counts[begin];
    smoothed.push_back({points[i].x, count > 0 ? (sums[end] - sums[begin]) / count : kNan});
  }
  return smoothed;
}

std::string draw_chart(const Chart& chart, size_t most_points) {
  const Drawing drawing(chart, most_points);
  return drawing.is_empty() ? "" : drawing.figure();
}

}  // namespace trainkit::detail
