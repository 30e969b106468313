// The page about several runs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "logging/field_names.h"
#include "report/report_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/io/text_file.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChartSeries::Kind;

constexpr size_t kMostCharts = 8;
/// Points of all lines of a chart together.
constexpr size_t kChartPoints = 4000;

/// Formats a figure; counts and bytes with all digits.
std::string number(double value) {
  if (!std::isfinite(value)) return "";
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value) : format_number(value);
}

/// Returns the names of the runs; runs of the same name get their folders.
std::vector<std::string> unique_names(const std::vector<RunData>& runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs) {
    const auto same =
        std::count_if(runs.begin(), runs.end(), [&](const RunData& other) { return other.name == run.name; });
    names.push_back(same > 1 ? run.folder : run.name);
  }
  return names;
}

void add_row(std::vector<ComparedRow>& rows, const std::string& name, std::vector<std::string> values) {
  const bool is_empty = std::all_of(values.begin(), values.end(), [](const std::string& v) { return v.empty(); });
  if (!is_empty) rows.push_back({name, std::move(values)});
}

/// Adds a row of a value that `value` computes for each run.
template <class Value>
void add_each(std::vector<ComparedRow>& rows, const std::string& name, const std::vector<RunData>& runs, Value value) {
  std::vector<std::string> values;
  values.reserve(runs.size());
  for (const RunData& run : runs) values.push_back(value(run));
  add_row(rows, name, std::move(values));
}

/// Adds the numbers of an object of summary.json, under the names of all runs.
void add_numbers(std::vector<ComparedRow>& rows, const std::vector<RunData>& runs, const std::string& prefix,
                 const std::function<const Json&(const RunData&)>& object, const std::set<std::string>& without) {
  std::vector<std::string> names;
  for (const RunData& run : runs) {
    const Json& values = object(run);
    if (!values.is_object()) continue;
    for (const auto& [name, value] : values.items()) {
      const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
      if (value.is_number() && !is_known && !without.contains(name)) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end(), natural_less);
  for (const std::string& name : names) {
    add_each(rows, prefix + name, runs, [&](const RunData& run) { return number(number_at(object(run), name, NAN)); });
  }
}

std::string median_rate(const RunData& run) {
  std::vector<double> rates;
  for (const ChartPoint& point : means_of(run, "train", run.rate())) {
    if (std::isfinite(point.y)) rates.push_back(point.y);
  }
  if (rates.empty()) return "";
  std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
  return number(rates[rates.size() / 2]);
}

std::vector<ComparedRow> outcomes(const std::vector<RunData>& runs) {
  std::vector<ComparedRow> rows;
  add_each(rows, fields::kProgram, runs, [](const RunData& run) { return text_at(run.run, fields::kProgram); });
  add_each(rows, "outcome", runs, [](const RunData& run) {
    const Outcome outcome = run.outcome();
    return outcome.word + (outcome.reason.empty() ? "" : ": " + outcome.reason);
  });
  add_each(rows, "steps", runs,
           [](const RunData& run) { return run.history.count() == 0 ? "" : std::to_string(run.history.last_step()); });
  add_each(rows, "seconds", runs, [](const RunData& run) { return fmt::format("{:.1f}", run.times().total); });
  add_each(rows, "rate_per_second", runs, median_rate);
  add_each(rows, fields::kBestStep, runs, [](const RunData& run) {
    return value_at(run.summary, fields::kBestStep).is_number()
               ? fmt::format("{:.0f}", number_at(run.summary, fields::kBestStep))
               : "";
  });
  const std::set<std::string> none;
  add_numbers(
      rows, runs, "best_", [](const RunData& run) -> const Json& { return value_at(run.summary, fields::kBest); },
      none);
  add_numbers(
      rows, runs, "final_", [](const RunData& run) -> const Json& { return value_at(run.summary, fields::kFinal); },
      none);
  add_numbers(rows, runs, "", [](const RunData& run) -> const Json& { return run.summary; },
              {fields::kExitCode, fields::kSteps, fields::kEpochs, fields::kWallSeconds, fields::kEffectiveFraction,
               fields::kBestStep});
  std::erase_if(rows, [](const ComparedRow& row) {
    // Details, such as the recall of each class, are in the page of a run.
    return row.name.find('.') != row.name.npos;
  });
  return rows;
}

std::vector<ComparedRow> differences(const std::vector<RunData>& runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs) {
    for (const RunSetting& setting : run.settings) {
      if (std::find(names.begin(), names.end(), setting.name) == names.end()) names.push_back(setting.name);
    }
  }
  std::vector<ComparedRow> rows;
  for (const std::string& name : names) {
    if (name == "output_dir" || name == "resume" || name == "overwrite") continue;
    ComparedRow row{name, {}};
    for (const RunData& run : runs) {
      const auto found = std::find_if(run.settings.begin(), run.settings.end(),
                                      [&](const RunSetting& setting) { return setting.name == name; });
      row.values.push_back(found == run.settings.end() ? "" : found->value);
    }
    const bool differs = std::any_of(row.values.begin(), row.values.end(),
                                     [&](const std::string& value) { return value != row.values.front(); });
    if (differs) rows.push_back(std::move(row));
  }
  return rows;
}

/// A line of each run in one chart.
std::string overlay(const std::string& title, const std::vector<std::string>& names, bool by_time,
                    const std::function<std::vector<ChartPoint>(size_t run)>& points, Kind kind, ValueFormat format) {
  Chart chart{.title = title, .y_format = format};
  if (by_time) chart.x_label = "time", chart.x_format = ValueFormat::kDuration;
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<ChartPoint> own = points(i);
    if (!own.empty()) chart.series.push_back({names[i], std::move(own), kind, static_cast<int>(i)});
  }
  return draw_chart(chart, std::clamp<size_t>(kChartPoints / std::max<size_t>(names.size(), 1), 40, 400));
}

std::string overlays(const std::vector<RunData>& runs, const std::vector<std::string>& names) {
  const auto all = [&](const std::string& split, const std::string& metric) {
    return [&runs, split, metric](size_t i) { return means_of(runs[i], split, metric); };
  };
  std::string out =
      overlay("Validation loss", names, false, all("val", fields::kLoss), Kind::kPoints, ValueFormat::kNumber);
  out += overlay(
      "Training loss, smoothed", names, false,
      [&](size_t i) { return smooth(means_of(runs[i], "train", fields::kLoss)); }, Kind::kLine, ValueFormat::kNumber);
  std::vector<std::string> metrics;
  for (const RunData& run : runs) {
    for (const std::string& name : score_names(run)) {
      if (std::find(metrics.begin(), metrics.end(), name) == metrics.end()) metrics.push_back(name);
    }
  }
  for (size_t i = 0; i < std::min(metrics.size(), kMostCharts); ++i) {
    const bool shares = std::all_of(runs.begin(), runs.end(),
                                    [&](const RunData& run) { return are_shares(points_of(run, "val", metrics[i])); });
    out += overlay("Validation " + metrics[i], names, false, all("val", metrics[i]), Kind::kPoints,
                   shares ? ValueFormat::kShare : ValueFormat::kNumber);
  }
  out += overlay(
      "Training loss over time, smoothed", names, true,
      [&](size_t i) { return smooth(means_by_time(runs[i], "train", fields::kLoss)); }, Kind::kLine,
      ValueFormat::kNumber);
  out += overlay(
      "Rows per second, smoothed", names, false,
      [&](size_t i) { return smooth(means_of(runs[i], "train", fields::kSamplesPerSecond)); }, Kind::kLine,
      ValueFormat::kCount);
  return out;
}

/// Returns the number that a figure is; NaN for another text.
double number_of(const std::string& text) {
  double value = 0;
  return parse_number(text, value) ? value : kNan;
}

/// Returns how far the values of a row are apart: 0 for equal ones, infinity where texts differ, else the difference of
/// the highest and the lowest number as a share of the largest magnitude.
double spread_of(const ComparedRow& row) {
  double low = INFINITY, high = -INFINITY;
  bool is_text = false, is_equal = true;
  for (const std::string& text : row.values) {
    const double value = number_of(text);
    is_equal = is_equal && text == row.values.front();
    is_text = is_text || (std::isnan(value) && !text.empty());
    low = std::fmin(low, value), high = std::fmax(high, value);
  }
  if (is_equal) return 0;
  return is_text || !(high > low) ? INFINITY : (high - low) / std::max(std::abs(high), std::abs(low));
}

/// Returns the format of a figure as the charts and tiles of a run have it.
ValueFormat format_of(const std::vector<RunData>& runs, const std::string& name) {
  if (name.ends_with("_bytes")) return ValueFormat::kSize;
  if (name.ends_with("seconds")) return ValueFormat::kDuration;
  if (name.ends_with("_per_second")) return ValueFormat::kCount;
  std::string metric = name;
  for (const std::string_view prefix : {"best_", "final_", "val_"}) {
    if (metric.starts_with(prefix)) metric.erase(0, prefix.size());
  }
  const bool is_share = std::ranges::all_of(runs, [&](const RunData& run) {
    const auto names = score_names(run);
    return std::ranges::find(names, metric) != names.end() && are_shares(points_of(run, "val", metric));
  });
  return is_share ? ValueFormat::kShare : ValueFormat::kNumber;
}

/// Returns the rows for readers: those that differ most first, figures of one kind in one format.
std::vector<ComparedRow> for_readers(const std::vector<RunData>& runs, std::vector<ComparedRow> rows) {
  std::ranges::stable_sort(rows, std::ranges::greater(), spread_of);
  for (ComparedRow& row : rows) {
    const ValueFormat format = format_of(runs, row.name);
    for (std::string& text : row.values) {
      const double value = number_of(text);
      if (format != ValueFormat::kNumber && std::isfinite(value)) text = format_value(value, format);
    }
  }
  return rows;
}

std::string rows_table(const std::string& label, const std::vector<std::string>& names,
                       const std::vector<ComparedRow>& rows, bool numeric) {
  if (rows.empty()) return "";
  std::vector<std::string> heads = {"run"};
  std::vector<size_t> columns;
  for (size_t i = 0; i < names.size(); ++i) {
    heads.push_back(fmt::format("<span class=\"key {}\">{}</span>", color_class(static_cast<int>(i)), html(names[i])));
    if (numeric) columns.push_back(i + 1);
  }
  std::vector<std::vector<std::string>> lines;
  for (const ComparedRow& row : rows) {
    auto& line = lines.emplace_back(std::vector<std::string>{html(row.name)});
    for (const std::string& value : row.values) line.push_back(html(value));
  }
  return table(label, heads, lines, columns);
}

}  // namespace

Comparison compare(const std::vector<RunData>& runs) {
  return {.names = unique_names(runs), .outcome = outcomes(runs), .settings = differences(runs)};
}

std::string comparison_page(const std::vector<RunData>& runs) {
  const Comparison compared = compare(runs);
  const std::string charts = overlays(runs, compared.names);
  return fmt::format("<header><h1>{} runs</h1></header>\n", runs.size()) +
         section("What differed", compared.settings.empty()
                                      ? "<p>No setting apart from the folder.</p>\n"
                                      : rows_table("What differed", compared.names, compared.settings, false)) +
         section("What came out",
                 rows_table("What came out", compared.names, for_readers(runs, compared.outcome), true)) +
         section("Curves", charts.empty() ? "" : "<div class=\"charts\">\n" + charts + "</div>\n");
}

}  // namespace trainkit::detail
