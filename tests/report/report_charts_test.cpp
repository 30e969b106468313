// The charts of a report, and where the time of a run went: its parts, its sessions and its slow steps.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/report.h"
#include "report/report_chart.h"
#include "report/report_parts.h"
#include "report/reported_run.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::detail;
using Catch::Contains;
using trainkit::test::page_of;
using trainkit::test::TempDir;
using trainkit::test::train_record;
using trainkit::test::val_record;
using trainkit::test::write_records;
using trainkit::test::write_text;

TEST_CASE("The parts of the time of a run add up to its total", "[logging][report]") {
  const TempDir dir;
  const std::string run = dir / "run";
  std::vector<LogRecord> records;
  for (int64_t step = 1; step <= 10; ++step) {
    records.push_back(train_record(step, 1));
    records.back().values.emplace_back("reduce_fraction", 0.3);
    if (step == 5) records.push_back(val_record(step, 1));
  }
  write_records(run, records);
  const nlohmann::json session = {{"started", 1000},        {"ended", 1100},      {"exit_reason", "max_steps"},
                                  {"training_seconds", 80}, {"pause_seconds", 8}, {"utilisation", {{"update", 0.1}}}};
  write_text(run + "/run.json", nlohmann::json{{"program", "x"}, {"sessions", {session}}}.dump());
  const RunTimes times = load_run(run).value().times();
  REQUIRE(times.total == Approx(100));
  const std::string part = run_time(load_run(run).value());
  double sum = 0;
  int parts = 0;
  for (size_t at = 0; (at = part.find("width:", at)) != part.npos; ++parts) sum += std::stod(part.substr(at += 6));
  CHECK(parts >= 6);
  CHECK(sum == Approx(100).margin(0.1));  // per cent
}

TEST_CASE("Twelve runs have twelve kinds of lines", "[logging][report]") {
  const TempDir dir;
  std::vector<std::string> runs;
  for (int i = 0; i < 12; ++i) {
    runs.push_back(dir / ("run" + std::to_string(i)));
    write_records(runs.back(), {train_record(1, 1 + i), train_record(2, 1)});
  }
  const std::string page = render_report(runs).value();
  for (const char* kind : {"c0", "c7", "c0 d1", "c3 d1"}) {
    CHECK_THAT(page, Contains("<path class=\"line " + std::string(kind) + "\"") &&
                         Contains("<span class=\"key " + std::string(kind) + "\">") &&
                         Contains("\"c\":\"" + std::string(kind) + "\""));
  }
}

TEST_CASE("Values that are not finite are gaps in a chart", "[logging][report]") {
  const TempDir dir;
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  write_records(dir / "run", {train_record(1, 2), train_record(2, nan), train_record(3, inf), train_record(4, 1)});
  const std::string page = page_of(dir / "run");
  CHECK_THAT(page, Contains("class=\"gap\"") && Contains("[2.0,null]"));
  CHECK_THAT(page, !Contains(":nan") && !Contains("d=\"Mnan"));
  write_records(dir / "none", {train_record(1, nan), train_record(2, nan)});
  CHECK_THAT(page_of(dir / "none"), !Contains("<b>Loss</b>") && Contains("<b>Learning rate</b>"));
}

TEST_CASE("A thinned series keeps its extremes and its length", "[logging][report]") {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 10'000; ++i)
    points.push_back({static_cast<double>(i), i == 5'000 ? 100.0 : i == 7'777 ? -100 : 1});
  const auto kept = thin(points, 400, /*keep_extremes=*/true);
  CHECK(kept.size() == 400);
  const auto of = [](double y) { return [y](const ChartPoint& point) { return point.y == y; }; };
  CHECK(std::any_of(kept.begin(), kept.end(), of(100)));
  CHECK(std::any_of(kept.begin(), kept.end(), of(-100)));
  CHECK(std::is_sorted(kept.begin(), kept.end(), [](auto a, auto b) { return a.x < b.x; }));
  CHECK(thin(points, 400, false).size() == 400);
  CHECK(thin(points, 20'000, true).size() == points.size());
}

TEST_CASE("Smoothing averages neighbours and keeps a straight line", "[logging][report]") {
  std::vector<ChartPoint> line;
  for (int i = 0; i < 100; ++i) line.push_back({static_cast<double>(i), 2.0 * i});
  const auto smoothed = smooth(line);
  for (int i = 0; i < 100; ++i) CHECK(smoothed[i].y == Approx(line[i].y));
  line[50].y = std::numeric_limits<double>::quiet_NaN();
  CHECK(smooth(line)[50].y == Approx(100));
}

TEST_CASE("Slow records are marked with their likely cause", "[logging][report]") {
  struct Case {
    int64_t step;
    std::vector<std::pair<const char*, double>> values;
    std::string cause;
  };
  const std::vector<Case> cases = {
      {1, {}, "first steps of a session"},
      {3, {{"data_wait_fraction", 0.8}, {"stolen_fraction", 0.5}}, "waited for data for 80% of the time"},
      {5,
       {{"stolen_fraction", 0.4}, {"save_fraction", 1}},
       "the host of the virtual machine took 40% of the processors"},
      {7,
       {{"processor_wait_fraction", 0.5}, {"other_processes_fraction", 0.6}, {"save_fraction", 1}},
       "other processes used 60% of the processors"},
      {9, {{"save_fraction", 0.7}, {"reduce_fraction", 0.8}}, "a checkpoint was being written"},
      {11, {{"save_seconds", 0.1}}, "a checkpoint was being written"},
      {13, {{"reduce_fraction", 0.8}}, "reduced gradients for 80% of the time"},
      {15, {}, "first steps after an evaluation"},
      {17, {{"processor_wait_fraction", 0.3}}, "its own threads waited for a processor for 30% of the time"},
      {19, {}, "unknown"}};
  const TempDir dir;
  std::vector<LogRecord> records;
  for (int64_t step = 1; step <= 30; ++step) {
    LogRecord record = train_record(step, 1);
    const auto set = [&](const char* name, double value) {
      for (auto& [known, old] : record.values) {
        if (known == name) return void(old = value);
      }
      record.values.emplace_back(name, value);
    };
    for (const Case& each : cases) {
      if (each.step != step) continue;
      set("samples_per_second", 100);
      for (const auto& [name, value] : each.values) set(name, value);
    }
    records.push_back(std::move(record));
    if (step == 14) records.push_back(val_record(step, 1));
  }
  write_records(dir / "run", records);
  const auto stalls = find_stalls(load_run(dir / "run").value());
  REQUIRE(stalls.size() == cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].step);
    CHECK(stalls[i].cause == cases[i].cause);
  }
  CHECK_THAT(page_of(dir / "run"), Contains("Slow steps") && Contains("waited for data for 80%"));
}

TEST_CASE("The time of a resumed run leaves out the time between its sessions", "[logging][report]") {
  const TempDir dir;
  const auto session = [](double started, double ended, int64_t step) {
    return nlohmann::json{{"started", started}, {"ended", ended},        {"first_step", step},
                          {"exit_reason", "x"}, {"training_seconds", 4}, {"pause_seconds", 1}};
  };
  const nlohmann::json run = {{"program", "trainkit-x"},
                              {"sessions", {session(1000, 1005, 0), session(9000, 9006, 3)}}};
  write_text(dir / "run/run.json", run.dump());
  std::string text;
  for (const auto& [step, time] : std::vector<std::pair<int, double>>{{1, 1001}, {3, 1003}, {4, 9002}, {6, 9004}}) {
    text +=
        R"({"step":)" + std::to_string(step) + R"(,"split":"train","loss":1,"time":)" + std::to_string(time) + "}\n";
  }
  write_text(dir / "run/metrics.jsonl", text);
  const RunData data = load_run(dir / "run").value();
  std::vector<double> seconds;
  for (const ChartPoint& point : means_by_time(data, "train", "loss")) seconds.push_back(point.x);
  CHECK(seconds == std::vector<double>{1, 3, 5, 7});
  CHECK(data.times().total == Approx(11));
  CHECK(data.times().training == Approx(6));
  CHECK(data.times().saving == Approx(2));
  CHECK_THAT(page_of(dir / "run"), Contains("resumed from step 3") && Contains("session 2"));
}

TEST_CASE("The table of a chart has recorded points only, thinned with the first and the last", "[logging][report]") {
  const auto rows_of = [](const std::vector<ChartPoint>& train, const std::vector<ChartPoint>& val) {
    Chart chart{.title = "Loss", .x_label = "step"};
    chart.x_format = ValueFormat::kStep;
    chart.series = {{.name = "train", .points = train}, {.name = "val", .points = val}};
    const std::string page = draw_chart(chart, 600);
    std::vector<std::string> rows;
    for (size_t at = 0; (at = page.find("<tr><th scope=\"row\">", at)) != page.npos;) {
      const size_t end = page.find("</tr>", at);
      rows.push_back(page.substr(at, end - at));
      at = end;
    }
    return rows;
  };
  CHECK(rows_of({{10, 4}, {20, 3}, {30, 2}}, {{20, 5}, {25, 6}}) ==
        std::vector<std::string>{
            "<tr><th scope=\"row\">10</th><td>4</td><td></td>", "<tr><th scope=\"row\">20</th><td>3</td><td>5</td>",
            "<tr><th scope=\"row\">25</th><td></td><td>6</td>", "<tr><th scope=\"row\">30</th><td>2</td><td></td>"});
  std::vector<ChartPoint> many;
  for (int i = 1; i <= 5000; ++i) many.push_back({10.0 * i, 1.0 / i});
  const auto thinned = rows_of(many, {{50000, 7}});
  CHECK(thinned.size() == 17);
  CHECK(thinned.front() == "<tr><th scope=\"row\">10</th><td>1</td><td></td>");
  CHECK_THAT(thinned.back(), Contains("50000</th>") && Contains("<td>2.00e-04</td><td>7</td>"));
  CHECK(rows_of({{1, 2}}, {}) == std::vector<std::string>{"<tr><th scope=\"row\">1</th><td>2</td>"});
}

TEST_CASE("A live report reads only the records that were added", "[logging][report]") {
  const TempDir dir;
  const std::string path = dir / "run/metrics.jsonl";
  std::vector<LogRecord> records;
  for (int64_t step = 1; step <= 100; ++step) records.push_back(train_record(step, 1));
  write_records(dir / "run", records);
  RunHistory history;
  REQUIRE(history.read(path).ok());
  CHECK(history.count() == 100);
  std::fstream(path, std::ios::in | std::ios::out) << "damaged";  // a reader from the start would find no record
  std::ofstream(path, std::ios::app) << to_json(train_record(101, 7)) + "\n{\"step\":10";
  REQUIRE(history.read(path).ok());
  CHECK(history.count() == 101);
  CHECK(history.values("train", "loss").extremes(ValueSeries::Axis::kStep).back().y == 7);
  std::ofstream(path, std::ios::app) << "2}\n";  // the line that was torn
  REQUIRE(history.read(path).ok());
  CHECK(history.last_step() == 102);
  records.resize(50);  // resumed from an earlier step
  records.push_back(train_record(51, 2));
  write_records(dir / "run", records);
  REQUIRE(history.read(path).ok());
  CHECK(history.count() == 51);
  CHECK(history.values("train", "loss").extremes(ValueSeries::Axis::kStep).back().y == 2);
}

TEST_CASE("A series of any length keeps its extremes and means in constant memory", "[logging][report]") {
  using Axis = ValueSeries::Axis;
  ValueSeries series;
  for (int i = 0; i < 8192; ++i) series.add(i, 2 * i, i % 10);
  REQUIRE(series.means(Axis::kSeconds).size() == 8192);
  CHECK(series.extremes(Axis::kStep).size() == 8192);
  CHECK(series.means(Axis::kSeconds)[77].x == 154);
  for (int i = 8192; i < 1'000'000; ++i) series.add(i, 2 * i, i == 777'777 ? 1000 : i == 5 ? kNan : i % 10);
  const auto extremes = series.extremes(Axis::kStep), means = series.means(Axis::kStep);
  CHECK(extremes.size() <= 2 * ValueSeries::kMostBuckets);
  CHECK(means.size() <= ValueSeries::kMostBuckets);
  const auto highest = std::max_element(extremes.begin(), extremes.end(),
                                        [](const ChartPoint& a, const ChartPoint& b) { return a.y < b.y; });
  CHECK(highest->x == 777'777);
  CHECK(highest->y == 1000);
  CHECK(means[100].y == Approx(4.5).margin(0.1));
}
