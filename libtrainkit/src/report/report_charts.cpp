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

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

using By = ValueSeries::Axis;

Chart throughput_chart(const RunData& run) {
  const bool is_time = run.history.is_timed();  // else by step
  const By axis = is_time ? By::kSeconds : By::kStep;
  const std::string metric = run.rate();
  const std::string unit = metric == fields::kTokensPerSecond ? "Tokens per second" : "Rows per second";
  Chart chart{.title = unit, .y_format = ValueFormat::kCount, .from_zero = true};
  chart.x_label = is_time ? "time" : "step";
  chart.x_format = is_time ? ValueFormat::kDuration : ValueFormat::kStep;
  if (is_time) chart.bands = run.history.bands();
  const ValueSeries& rates = run.history.values("train", metric);
  chart.series = {{"measured", rates.extremes(axis), Kind::kRaw, 0},
                  {"smoothed", smooth(rates.means(axis)), Kind::kLine, 0}};
  for (const Stall& stall : find_stalls(run)) {
    if (chart.marks.size() == kMostMarks) break;
    chart.marks.push_back({is_time ? stall.seconds : stall.step, stall.rate, "slow: " + stall.cause});
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
    chart.series.push_back({"train, smoothed", smooth(means_of(run, "train", metric)), Kind::kLine, 0});
  }
  if (!val.empty()) chart.series.push_back({"validation", means_of(run, "val", metric), Kind::kPoints, 1});
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
    const auto points = means_of(run, "train", metric);
    if (!points.empty()) chart.series.push_back({name, smooth(points), Kind::kLine, color});
    ++color;
  }
  return chart;
}

/// A chart of one line per element of a record's list.
Chart list_chart(const std::string& title, ValueFormat format, const std::string& name,
                 const std::vector<ValueSeries>& lists) {
  Chart chart{.title = title, .y_format = format};
  for (size_t i = 0; i < lists.size(); ++i) {
    chart.series.push_back({lists.size() == 1 ? name : fmt::format("{} {}", name, i), lists[i].means(By::kStep),
                            Kind::kLine, static_cast<int>(i)});
  }
  return chart;
}

Chart memory_chart(const RunData& run) {
  Chart chart = list_chart("Memory", ValueFormat::kSize, "GPU", run.history.gpu_memory_bytes());
  const auto host = means_of(run, "train", fields::kHostMemoryBytes);
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
  const Chart each = list_chart("", ValueFormat::kShare, "GPU", run.history.gpu_utilisation());
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
        shares.series.push_back({name + (chosen ? " (selects the best)" : ""), means_of(run, "val", name),
                                 Kind::kPoints, static_cast<int>(shares.series.size())});
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
  return run.history.values(split, metric).extremes(By::kStep);
}

std::vector<ChartPoint> means_of(const RunData& run, std::string_view split, std::string_view metric) {
  return run.history.values(split, metric).means(By::kStep);
}

std::vector<ChartPoint> means_by_time(const RunData& run, std::string_view split, std::string_view metric) {
  const ValueSeries& values = run.history.values(split, metric);
  return values.is_timed() ? values.means(By::kSeconds) : std::vector<ChartPoint>();
}

bool are_shares(const std::vector<ChartPoint>& points) {
  return std::all_of(points.begin(), points.end(),
                     [](const ChartPoint& point) { return !std::isfinite(point.y) || (point.y >= 0 && point.y <= 1); });
}

std::vector<std::string> score_names(const RunData& run) {
  std::vector<std::string> names;
  const std::string metric = run.monitor();
  for (const std::string& name : run.history.names("val")) {
    const bool is_score = name != fields::kLoss && name != fields::kTime &&
                          std::count(name.begin(), name.end(), '.') == 0 && !name.ends_with("_seconds");
    if (is_score) names.insert(name == metric ? names.begin() : names.end(), name);
  }
  const bool is_first = !names.empty() && names.front() == metric;
  std::sort(names.begin() + is_first, names.end(), natural_less);
  return names;
}

std::vector<Stall> find_stalls(const RunData& run) {
  std::vector<double> rates;
  for (const ChartPoint& point : means_of(run, "train", run.rate())) {
    if (std::isfinite(point.y) && point.y > 0) rates.push_back(point.y);
  }
  std::vector<Stall> stalls;
  if (rates.size() < 8) return stalls;
  std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
  const double median = rates[rates.size() / 2];
  for (const StallCandidate& one : run.history.candidates()) {
    const double rate = run.history.has_tokens() ? one.tokens_per_second : one.samples_per_second;
    if (rate > 0 && rate < kStallShare * median)
      stalls.push_back({one.step, one.seconds, rate, median, describe(one.cause)});
  }
  return stalls;
}

std::string run_charts(const RunData& run) {
  std::vector<Chart> charts = {metric_chart(run, "Loss", fields::kLoss)};
  for (Chart& chart : score_charts(run)) charts.push_back(std::move(chart));
  charts.push_back(throughput_chart(run));
  charts.push_back(list_chart("Learning rate", ValueFormat::kSetting, "group", run.history.lr()));
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
    rows.push_back({fmt::format("{:.0f}", stall.step),
                    std::isfinite(stall.seconds) ? format_duration(stall.seconds) : "", format_count(stall.rate),
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
