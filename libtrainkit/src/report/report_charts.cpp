// The charts of a report about one run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "logging/field_names.h"
#include "report/report_parts.h"
#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

constexpr double kStallShare = 0.6;
constexpr size_t kMostScores = 8, kMostOwnCharts = 6, kMostStalls = 20, kMostMarks = 100;

using Kind = ChartSeries::Kind;

double value_of(const LogRecord& record, std::string_view name) {
  const double* found = record.find(name);
  return found && std::isfinite(*found) ? *found : 0;
}

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

/// What happened just before a training record.
struct Before {
  bool session = true, evaluation = false;
};

/// Names the likely cause of a slow record: first what was measured, then what happened before it.
std::string cause_of(const LogRecord& record, const Before& before) {
  if (const double wait = value_of(record, fields::kDataWaitFraction); wait > 0.3) {
    return fmt::format("waited for data for {} of the time", whole_percent(wait));
  }
  const double own = value_of(record, fields::kProcessorWaitFraction),
               others = value_of(record, fields::kOtherProcessesFraction);
  if (const double stolen = value_of(record, fields::kStolenFraction); stolen > 0.1) {
    return fmt::format("the host of the virtual machine took {} of the processors", whole_percent(stolen));
  }
  if (own > 0.1 && others > 0.1) {
    return fmt::format("other processes used {} of the processors", whole_percent(others));
  }
  const bool saves = value_of(record, fields::kSaveFraction) > 0.1 || value_of(record, fields::kSaveSeconds) > 0;
  if (saves) return "a checkpoint was being written";
  if (const double reduce = value_of(record, fields::kReduceFraction); reduce > 0.4) {
    return fmt::format("reduced gradients for {} of the time", whole_percent(reduce));
  }
  if (before.session) return "first steps of a session";
  if (before.evaluation) return "first steps after an evaluation";
  if (own > 0.1) return fmt::format("its own threads waited for a processor for {} of the time", whole_percent(own));
  return "unknown";
}

/// x of a record: elapsed seconds if they are known for all records, else the step.
struct TimeAxis {
  explicit TimeAxis(const RunData& run)
      : is_time(!run.seconds.empty() &&
                std::all_of(run.seconds.begin(), run.seconds.end(), [](double s) { return std::isfinite(s); })) {}
  double at(const RunData& run, size_t record) const {
    return is_time ? run.seconds[record] : static_cast<double>(run.records[record].step);
  }
  void label(Chart& chart) const {
    chart.x_label = is_time ? "time" : "step";
    chart.x_format = is_time ? ValueFormat::kDuration : ValueFormat::kStep;
  }
  bool is_time;
};

Chart throughput_chart(const RunData& run) {
  const TimeAxis axis(run);
  const std::string metric = run.rate();  // looks at all records
  const std::string unit = metric == fields::kTokensPerSecond ? "Tokens per second" : "Rows per second";
  Chart chart{.title = unit, .y_format = ValueFormat::kCount, .from_zero = true};
  axis.label(chart);
  std::vector<ChartPoint> rates;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const LogRecord& record = run.records[i];
    const double* const rate = record.find(metric);
    if (record.split == "train" && rate) rates.push_back({axis.at(run, i), *rate});
    const double evaluation = value_of(record, fields::kEvaluationSeconds);
    if (axis.is_time && evaluation > 0 && chart.bands.size() < kMostMarks) {
      chart.bands.push_back(
          {run.seconds[i] - evaluation, run.seconds[i], fmt::format("evaluation, {:.2g} s", evaluation)});
    }
    const double save = value_of(record, fields::kSaveSeconds);
    if (axis.is_time && save > 0.5 && chart.bands.size() < kMostMarks) {
      chart.bands.push_back({run.seconds[i] - save, run.seconds[i], fmt::format("checkpoint, {:.2g} s", save)});
    }
  }
  chart.series = {{"measured", rates, Kind::kRaw, 0}, {"smoothed", smooth(rates), Kind::kLine, 0}};
  for (const Stall& stall : find_stalls(run)) {
    if (chart.marks.size() == kMostMarks) break;
    chart.marks.push_back({axis.at(run, stall.record), stall.rate, "slow: " + stall.cause});
  }
  if (!chart.marks.empty()) {
    chart.note = fmt::format("Marked: {} records below {} of the median, with their likely cause.",
                             chart.marks.size() == kMostMarks ? "the first 100" : std::to_string(chart.marks.size()),
                             whole_percent(kStallShare));
  }
  if (!chart.bands.empty())
    chart.note += (chart.note.empty() ? "" : " ") + std::string("Shaded: evaluations and saves.");
  return chart;
}

/// Adds a rule where each later session begins.
void mark_resumes(const RunData& run, Chart& chart) {
  for (size_t i = 1; i < run.sessions().size(); ++i) {
    const double step = number_at(run.sessions()[i], fields::kFirstStep);
    chart.marks.push_back({step, 0, fmt::format("resumed from step {:.0f}", step), /*has_y=*/false});
  }
}

/// Whether a metric may be a share, such as an accuracy.
bool is_score(const std::string& metric) {
  return metric != fields::kLoss && metric != fields::kGradNorm && metric != fields::kLossScale;
}

/// A chart of values of training records: raw and smoothed, and those of evaluations if there are any.
Chart metric_chart(const RunData& run, const std::string& title, const std::string& metric) {
  const auto train = points_of(run, "train", metric), val = points_of(run, "val", metric);
  Chart chart{.title = title};
  if (!train.empty()) {
    chart.series.push_back({"train", train, Kind::kRaw, 0});
    chart.series.push_back({"train, smoothed", smooth(train), Kind::kLine, 0});
  }
  if (!val.empty()) chart.series.push_back({"validation", val, Kind::kPoints, 1});
  if (is_score(metric) && are_shares(train) && are_shares(val)) chart.y_format = ValueFormat::kShare;
  mark_resumes(run, chart);
  return chart;
}

/// A chart of several values of training records.
Chart values_chart(const RunData& run, const std::string& title, ValueFormat format,
                   const std::vector<std::pair<const char*, const char*>>& names) {
  Chart chart{.title = title, .y_format = format, .from_zero = true};
  int color = 0;
  for (const auto& [metric, name] : names) {
    const auto points = points_of(run, "train", metric);
    if (!points.empty()) chart.series.push_back({name, smooth(points), Kind::kLine, color});
    ++color;
  }
  return chart;
}

/// A chart of one line per element of a record's list.
template <class List>
Chart list_chart(const RunData& run, const std::string& title, ValueFormat format, const std::string& name,
                 List LogRecord::*list) {
  Chart chart{.title = title, .y_format = format};
  std::vector<ChartSeries> lines;
  for (const LogRecord& record : run.records) {
    const List& values = record.*list;
    for (size_t i = 0; i < values.size() && i < kMostScores; ++i) {
      if (i >= lines.size()) lines.push_back({"", {}, Kind::kLine, static_cast<int>(i)});
      lines[i].points.push_back({static_cast<double>(record.step), static_cast<double>(values[i])});
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    lines[i].name = lines.size() == 1 ? name : fmt::format("{} {}", name, i);
  }
  chart.series = std::move(lines);
  return chart;
}

Chart memory_chart(const RunData& run) {
  Chart chart = list_chart(run, "Memory", ValueFormat::kSize, "GPU", &LogRecord::gpu_memory_bytes);
  const auto host = points_of(run, "train", fields::kHostMemoryBytes);
  if (!host.empty()) chart.series.push_back({"process", host, Kind::kLine, static_cast<int>(chart.series.size())});
  chart.from_zero = true;
  return chart;
}

Chart device_chart(const RunData& run) {
  Chart chart = values_chart(run, "Devices and processors", ValueFormat::kShare,
                             {{fields::kUtilisation, "utilisation"},
                              {fields::kDataWaitFraction, "waiting for data"},
                              {fields::kProcessorWaitFraction, "waiting for a processor"},
                              {fields::kOtherProcessesFraction, "processors used by others"},
                              {fields::kStolenFraction, "processors taken by the host"}});
  const Chart each = list_chart(run, "", ValueFormat::kShare, "GPU", &LogRecord::gpu_utilisation);
  for (ChartSeries series : each.series) {
    series.color = static_cast<int>(chart.series.size());
    if (each.series.size() > 1) chart.series.push_back(std::move(series));
  }
  return chart;
}

/// Charts of the scores: shares of evaluations together, other values in charts of their own.
std::vector<Chart> score_charts(const RunData& run) {
  std::vector<Chart> charts;
  Chart shares{.title = "Validation scores", .y_format = ValueFormat::kShare};
  const auto metric = run.monitor();
  for (const std::string& name : score_names(run)) {
    const auto val = points_of(run, "val", name);
    const bool has_train = !points_of(run, "train", name).empty();
    if (!has_train && are_shares(val)) {
      const bool chosen = name == metric && metric != fields::kLoss;
      if (shares.series.size() < kMostScores) {
        shares.series.push_back(
            {name + (chosen ? " (selects the best)" : ""), val, Kind::kPoints, static_cast<int>(shares.series.size())});
      }
    } else if (charts.size() < kMostOwnCharts) {
      charts.push_back(metric_chart(run, name, name));
    }
  }
  charts.insert(charts.begin(), std::move(shares));
  return charts;
}

}  // namespace

std::vector<ChartPoint> points_of(const RunData& run, std::string_view split, std::string_view metric) {
  std::vector<ChartPoint> points;
  for (const LogRecord& record : run.records) {
    if (record.split != split) continue;
    if (const double* value = record.find(metric)) points.push_back({static_cast<double>(record.step), *value});
  }
  return points;
}

std::vector<ChartPoint> points_by_time(const RunData& run, std::string_view split, std::string_view metric) {
  std::vector<ChartPoint> points;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const LogRecord& record = run.records[i];
    const double* const value = record.find(metric);
    if (record.split != split || !value) continue;
    if (!std::isfinite(run.seconds[i])) return {};
    points.push_back({run.seconds[i], *value});
  }
  return points;
}

bool are_shares(const std::vector<ChartPoint>& points) {
  return std::all_of(points.begin(), points.end(),
                     [](const ChartPoint& point) { return !std::isfinite(point.y) || (point.y >= 0 && point.y <= 1); });
}

std::vector<std::string> score_names(const RunData& run) {
  std::vector<std::string> names;
  const std::string metric = run.monitor();
  for (const LogRecord& record : run.records) {
    if (record.split != "val") continue;
    for (const auto& [name, value] : record.values) {
      const bool is_score =
          name != fields::kLoss && name != fields::kTime && name.find('.') == name.npos && !name.ends_with("_seconds");
      if (!is_score || std::find(names.begin(), names.end(), name) != names.end()) continue;
      names.insert(name == metric ? names.begin() : names.end(), name);
    }
    if (names.size() > 4 * kMostScores) break;
  }
  const bool is_first = !names.empty() && names.front() == metric;
  std::sort(names.begin() + is_first, names.end(), natural_less);
  return names;
}

std::vector<Stall> find_stalls(const RunData& run) {
  const std::string rate = run.rate();
  std::vector<double> rates;
  for (const LogRecord& record : run.records) {
    const double value = record.split == "train" ? value_of(record, rate) : 0;
    if (value > 0) rates.push_back(value);
  }
  std::vector<Stall> stalls;
  if (rates.size() < 8) return stalls;
  std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
  const double median = rates[rates.size() / 2];
  size_t session = 0;
  Before before;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const LogRecord& record = run.records[i];
    if (record.split != "train") {
      before.evaluation = true;
      continue;
    }
    while (session + 1 < run.sessions().size() &&
           static_cast<double>(record.step) > number_at(run.sessions()[session + 1], fields::kFirstStep)) {
      ++session, before.session = true;
    }
    const double value = value_of(record, rate);
    const bool slow = value > 0 && value < kStallShare * median;
    if (slow) stalls.push_back({.record = i, .rate = value, .median = median, .cause = cause_of(record, before)});
    before = {.session = false};
  }
  return stalls;
}

std::string run_charts(const RunData& run) {
  std::vector<Chart> charts = {metric_chart(run, "Loss", fields::kLoss)};
  for (Chart& chart : score_charts(run)) charts.push_back(std::move(chart));
  charts.push_back(throughput_chart(run));
  charts.push_back(list_chart(run, "Learning rate", ValueFormat::kSetting, "group", &LogRecord::lr));
  charts.push_back(metric_chart(run, "Gradient norm", fields::kGradNorm));
  charts.back().may_be_logarithmic = true;
  charts.push_back(metric_chart(run, "Loss scale", fields::kLossScale));
  charts.back().may_be_logarithmic = true;
  charts.push_back(device_chart(run));
  charts.push_back(memory_chart(run));
  charts.push_back(
      values_chart(run, "Batches ready in the queue", ValueFormat::kNumber, {{fields::kQueueDepth, "ready"}}));
  std::string drawn;
  for (const Chart& chart : charts) drawn += draw_chart(chart);
  return section("Training",
                 drawn.empty() ? "<p>No record was logged.</p>\n" : "<div class=\"charts\">\n" + drawn + "</div>\n");
}

std::string run_stalls(const RunData& run) {
  const std::vector<Stall> stalls = find_stalls(run);
  std::vector<std::vector<std::string>> rows;
  for (const Stall& stall : stalls) {
    if (rows.size() == kMostStalls) break;
    const double seconds = run.seconds[stall.record];
    rows.push_back({std::to_string(run.records[stall.record].step),
                    std::isfinite(seconds) ? format_duration(seconds) : "", format_count(stall.rate),
                    whole_percent(stall.rate / stall.median), html(stall.cause)});
  }
  if (rows.empty()) return "";
  const std::string more =
      stalls.size() > rows.size() ? fmt::format("<p>{} more.</p>\n", stalls.size() - rows.size()) : "";
  return section(
      "Slow steps",
      table("Slow steps", {"step", "time", "rate", "of the median", "likely cause"}, rows, {1, 2, 3}) + more);
}

}  // namespace trainkit::detail
