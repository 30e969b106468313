#include "trainkit/scale_plot.h"

#include <regex>

#include "test_util.h"

using namespace trainkit::tool;

namespace {

/// The points of a line in its path.
std::vector<std::pair<double, double>> points_in_plot(const std::string& svg, const std::string& line) {
  std::smatch path;
  std::vector<std::pair<double, double>> points;
  if (!std::regex_search(svg, path, std::regex("class=\"" + line + "\" d=\"([^\"]*)\""))) return points;
  const std::string text = path[1];
  const std::regex point("[ML]([-0-9.]+) ([-0-9.]+)");
  for (std::sregex_iterator it(text.begin(), text.end(), point), end; it != end; ++it) {
    points.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  return points;
}

/// Checks that every element is closed, as any XML reader requires.
bool is_balanced_plot(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)([^<>]*)>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    if ((*it)[1].length() > 0) {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    } else if (!(*it)[3].str().ends_with("/")) {
      open.push_back((*it)[2]);
    }
  }
  return open.empty();
}

}  // namespace

TEST_CASE("A plot has lines through their points, axes and a legend") {
  PlotLine predicted{"predicted", {}};
  for (int64_t devices = 1; devices <= 100; ++devices) {
    predicted.points.emplace_back(devices, 1 + 3.0 / static_cast<double>(devices));
  }
  const std::string svg =
      draw_plot("Scaling of a step", "speed-up", {predicted, {"measured", {{10, 1.5}, {100, 1.55}}}});
  CHECK(is_balanced_plot(svg));
  const auto line = points_in_plot(svg, "predicted");
  REQUIRE(line.size() == 100);
  REQUIRE(points_in_plot(svg, "measured").size() == 2);
  CHECK(line.back().first == Approx(776));  // the last number of devices is at the right edge
  CHECK(line.front().first == Approx(72 + 704 * 0.01).margin(0.1));
  for (size_t i = 1; i < line.size(); ++i) {
    CHECK(line[i].first > line[i - 1].first);
    CHECK(line[i].second >= line[i - 1].second);  // the values fall, and y grows downwards
  }
  // The axis goes from 1 to 4 with marks every 0.5: 4 is at the top, 1 at the bottom.
  CHECK(line.front().second == Approx(72));
  CHECK(line.back().second == Approx(392 - 320 * 0.03 / 3).margin(0.1));
  for (const char* text : {">Scaling of a step<", ">speed-up<", ">devices<", ">2.5<", ">100<", " predicted 1.0300<",
                           " measured 1.5500<", "<circle"}) {
    CHECK_THAT(svg, Catch::Contains(text));
  }
}

TEST_CASE("A plot of one point or one value is still a picture") {
  for (const std::vector<std::pair<int64_t, double>>& points :
       std::vector<std::vector<std::pair<int64_t, double>>>{{{5, 2}}, {{1, 0}}, {{1, 2}, {1000, 2}}, {{1, 1e-300}}}) {
    const std::string svg = draw_plot("title", "speed-up", {{"linear", points}});
    CHECK(is_balanced_plot(svg));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(svg.find("nan") == std::string::npos);
  }
}

TEST_CASE("Marks of a plot's axes lie within the picture, for values of any size") {
  for (const double scale : {1e-12, 1e-6, 1e-3, 1.0, 12345.0, 1e9, 1e20}) {
    for (const int64_t last : {7, 1049, 99'999, 12'345'678}) {
      std::vector<PlotLine> lines = {{"predicted", {}}, {"linear", {}}};
      for (int i = 0; i <= 10; ++i) {
        lines[0].points.emplace_back(last * i / 10, scale * (1.00001 + 1e-5 * i));
        lines[1].points.emplace_back(last * i / 10, -scale * i);
      }
      CAPTURE(scale, last);
      const std::string svg = draw_plot("Scaling of a step of 100 ms", "efficiency (%)", lines);
      const std::regex text("<text x=\"([0-9.]+)\"[^>]*>([^<]*)<");
      for (std::sregex_iterator it(svg.begin(), svg.end(), text), end; it != end; ++it) {
        const double x = std::stod((*it)[1]);
        const bool ends = it->str().find("\"end\"") != std::string::npos;
        const bool centred = it->str().find("\"middle\"") != std::string::npos;
        const double width = 6.8 * static_cast<double>((*it)[2].length()) *
                             (it->str().find("font-size=\"18\"") != std::string::npos ? 1.5 : 1);
        CAPTURE(it->str());
        REQUIRE(x - (ends ? width : centred ? width / 2 : 0) >= 0);
        REQUIRE(x + (ends ? 0 : centred ? width / 2 : width) <= 800);
      }
    }
  }
}
