#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>

#include "test_util.h"
#include "trainkit/logging/sinks.h"
#include "trainkit/report/summary.h"

using namespace trainkit;

namespace {

std::vector<LogRecord> run(int steps) {
  std::vector<LogRecord> records;
  for (int step = 10; step <= steps; step += 10) {
    records.push_back({.step = step, .values = {{"loss", 1 + 3.0 / step * 10}}});
    if (step % 100 == 0) records.push_back({.step = step, .split = "val", .values = {{"loss", 1.5 + 50.0 / step}}});
  }
  return records;
}

/// The points of the line of a split in its path.
std::vector<std::pair<double, double>> line_of(const std::string& svg, const std::string& split) {
  std::smatch path;
  std::vector<std::pair<double, double>> points;
  if (!std::regex_search(svg, path, std::regex("class=\"" + split + "\" d=\"([^\"]*)\""))) return points;
  const std::string line = path[1];
  const std::regex point("[ML]([-0-9.]+) ([-0-9.]+)");
  for (std::sregex_iterator it(line.begin(), line.end(), point), end; it != end; ++it) {
    points.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  }
  return points;
}

size_t count(const std::string& text, const std::string& piece) {
  size_t found = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++found;
  return found;
}

/// Checks that every element is closed, as any XML reader requires.
bool balanced(const std::string& svg) {
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

TEST_CASE("The picture has a line through the points of each split, axes and a legend", "[logging][plot]") {
  const std::string svg = plot_svg(run(1000));
  CHECK(balanced(svg));
  const auto train = line_of(svg, "train"), val = line_of(svg, "val");
  REQUIRE(train.size() == 100);
  REQUIRE(val.size() == 10);
  CHECK(train.back().first == Approx(776));  // the last step is at the right edge
  CHECK(train.front().first == Approx(72 + 704 * 0.01).margin(0.1));
  for (size_t i = 1; i < train.size(); ++i) {
    CHECK(train[i].first > train[i - 1].first);
    CHECK(train[i].second >= train[i - 1].second);  // the loss falls, and y grows downwards
  }
  // The axis goes from 1 to 4 with marks every 0.5: loss 4 is at the top, loss 1 at the bottom.
  CHECK(train.front().second == Approx(72));
  CHECK(train.back().second == Approx(392 - 320 * 0.03 / 3).margin(0.1));
  CHECK(svg.find(" train 1.0300<") != std::string::npos);
  CHECK(svg.find(" val 1.5500 (lowest 1.5500 at step 1000)<") != std::string::npos);
  CHECK(svg.find(">step<") != std::string::npos);
  CHECK(svg.find(">2.5<") != std::string::npos);
  CHECK(svg.find(">1000<") != std::string::npos);
  CHECK(count(svg, "<circle") == 10);
}

TEST_CASE("A long run is averaged to one point per pixel and keeps its mean", "[logging][plot]") {
  std::vector<LogRecord> records;
  for (int step = 1; step <= 100'000; ++step)
    records.push_back({.step = step, .values = {{"loss", step % 2 ? 1.0 : 3.0}}});
  const auto line = line_of(plot_svg(records), "train");
  REQUIRE(line.size() == 704);
  for (const auto& [x, y] : line) CHECK(y == Approx((72 + 392) / 2.0).margin(3));
}

TEST_CASE("Non-finite values leave a gap and a mark", "[logging][plot]") {
  auto records = run(200);
  records[5].values[0].second = std::numeric_limits<double>::quiet_NaN();
  records[6].values[0].second = std::numeric_limits<double>::infinity();
  const std::string svg = plot_svg(records);
  CHECK(count(svg, "class=\"gap\"") == 2);
  const size_t path = svg.find("class=\"train\"");
  const std::string line = svg.substr(path, svg.find('\n', path) - path);
  CHECK(count(line, "M") == 2);
  CHECK(line.find("nan") == std::string::npos);
  CHECK(line.find("inf") == std::string::npos);
}

TEST_CASE("Runs with no point, one point, one value or a hostile name still give a picture", "[logging][plot]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& records : std::vector<std::vector<LogRecord>>{
           {},
           {{.step = 5, .values = {{"loss", 2}}}},
           {{.step = 0, .values = {{"loss", 0}}}},
           {{.step = 1, .values = {{"loss", nan}}}},
           {{.step = 1, .values = {{"loss", 2}}}, {.step = 1000, .values = {{"loss", 2}}}},
           {{.step = 1, .split = "<script>\"&\x1b", .values = {{"loss", -1e300}}},
            {.step = 2, .values = {{"loss", 1e300}}}}}) {
    const std::string svg = plot_svg(records);
    CHECK(balanced(svg));
    CHECK(svg.ends_with("</svg>\n"));
    CHECK(svg.find("script>") == std::string::npos);
    CHECK(svg.find(":nan") == std::string::npos);
    CHECK(svg.find("=\"nan") == std::string::npos);
  }
}

TEST_CASE("loss.svg is drawn from metrics.jsonl", "[logging][plot]") {
  test::TempDir dir;
  CHECK(absl::IsNotFound(write_loss_plot(dir.path())));
  auto logger = JsonlLogger::open(dir / "metrics.jsonl").value();
  for (const LogRecord& record : run(300)) logger->log(record);
  REQUIRE(logger->flush().ok());
  REQUIRE(write_loss_plot(dir.path()).ok());
  std::ifstream file(dir / "loss.svg");
  const std::string svg((std::istreambuf_iterator<char>(file)), {});
  const std::string name = std::filesystem::path(dir.path()).filename().string();
  CHECK(svg.find(name + "<") != std::string::npos);  // the run's name is the title
  CHECK(svg == plot_svg(run(300), "loss", "step", "tmp/" + name));
}

TEST_CASE("Marks of the axes lie within the picture, for values of any size", "[logging][plot]") {
  for (const double scale : {1e-12, 1e-6, 1e-3, 1.0, 12345.0, 1e9, 1e20}) {
    for (const int64_t last : {7, 1049, 99'999, 12'345'678}) {
      std::vector<LogRecord> records;
      for (int i = 0; i <= 10; ++i) {
        records.push_back({.step = last * i / 10, .values = {{"loss", scale * (1.00001 + 1e-5 * i)}}});
        records.push_back({.step = last * i / 10, .split = "val", .values = {{"loss", -scale * i}}});
      }
      CAPTURE(scale, last);
      const std::string svg = plot_svg(records, "loss", "step", "runs/" + std::string(200, 'x'));
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

TEST_CASE("A picture of other data names its axis and has no lowest value") {
  const std::vector<LogRecord> records = {{.step = 1, .split = "linear", .values = {{"speed-up", 1}}},
                                          {.step = 8, .split = "linear", .values = {{"speed-up", 8}}}};
  const std::string svg = plot_svg(records, "speed-up", "devices & nodes");
  CHECK(svg.find(">devices &amp; nodes<") != std::string::npos);
  CHECK(svg.find("linear 8.0000") != std::string::npos);
  CHECK(svg.find("lowest") == std::string::npos);
  CHECK(svg.find(">step<") == std::string::npos);
}
