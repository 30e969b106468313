#pragma once
/// Draws the plots of `trainkit scale`.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainkit::tool {

/// A line of a plot. Its values are finite.
struct PlotLine {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // number of devices, value
};

/// Draws values over the number of devices as an SVG of 800 x 450 pixels, below `title` and the values' name. The
/// legend shows the last value of each line.
std::string draw_plot(std::string_view title, std::string_view value, const std::vector<PlotLine>& lines);

}  // namespace trainkit::tool
