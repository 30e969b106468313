#pragma once
/// Draws a chart of a report as HTML: an inline SVG, axes and legend as text, and the values for hover and tables.

#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit::detail {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Escapes text for HTML: format_text(text) with markup characters as entities. For content and quoted attributes.
std::string html(std::string_view text);

/// How a value is written, on an axis and next to the pointer.
enum class ValueFormat { kNumber, kCount, kSize, kShare, kSetting, kStep, kDuration };
std::string format_value(double value, ValueFormat format);

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartSeries {
  enum class Kind {
    kRaw,    ///< A faint line that keeps extremes.
    kLine,   ///< A line; long series are averaged.
    kPoints  ///< A line with a dot at each value.
  };
  std::string name = {};
  std::vector<ChartPoint> points = {};
  Kind kind = Kind::kLine;
  /// Number of its colour; see kChartColors.
  int color = 0;
};

/// A span of x that is shaded, such as an evaluation.
struct ChartBand {
  double from = 0, to = 0;
  std::string label = {};
};

/// A place that is marked: a dot at (x, y), or without `has_y` a vertical line.
struct ChartMark {
  double x = 0, y = 0;
  std::string label = {};
  bool has_y = true;
};

struct Chart {
  std::string title = {};
  std::string x_label = "step";
  ValueFormat x_format = ValueFormat::kStep, y_format = ValueFormat::kNumber;
  std::vector<ChartSeries> series = {};
  std::vector<ChartBand> bands = {};
  std::vector<ChartMark> marks = {};
  /// Text below the chart. Empty: none.
  std::string note = {};
  /// Start the y axis at 0.
  bool from_zero = false;
  /// Logarithmic y axis if the positive values span more than two powers of ten.
  bool may_be_logarithmic = false;
};

inline constexpr int kChartColors = 8;
/// Returns the CSS classes of a colour: lines after the eighth repeat the colours dashed, after the 16th dotted.
std::string color_class(int color);

/// Returns the chart as a <figure>; empty without a finite value. Each series has at most `most_points` points.
std::string draw_chart(const Chart& chart, size_t most_points = 400);

/// Averages over neighbours, about a fortieth of the series to each side. A non-finite value counts as no value.
std::vector<ChartPoint> smooth(const std::vector<ChartPoint>& points);

/// Returns at most `most` points: the lowest and highest of each stretch with `keep_extremes`, else the mean.
std::vector<ChartPoint> thin(const std::vector<ChartPoint>& points, size_t most, bool keep_extremes);

}  // namespace trainkit::detail
