#pragma once
/// Parts of a report, each as HTML. A part without content is empty.

#include <string>
#include <string_view>
#include <vector>

#include "report/report_chart.h"
#include "report/report_data.h"

namespace trainkit::detail {

/// Style and script of the page, without their tags.
extern const char kReportStyle[], kReportScript[];

/// Returns <section> with a heading; empty if `content` is empty.
std::string section(std::string_view title, const std::string& content);
/// A tile: a value with a name and a remark.
std::string tile(std::string_view value, std::string_view name, std::string_view remark);
std::string base64(std::string_view bytes);
/// A table. Cells are HTML; `numeric` columns (from 0) are aligned to the right.
std::string table(std::string_view label, const std::vector<std::string>& heads,
                  const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& numeric = {});

/// A step of training that was slow.
struct Stall {
  double step = 0;
  /// Seconds since the start of the run; NaN if unknown.
  double seconds = 0;
  /// Rate, and the median rate of the run.
  double rate = 0, median = 0;
  std::string cause;
};
/// Returns the training records with less than 60 % of the median rate.
std::vector<Stall> find_stalls(const RunData& run);

// ---- One run.

std::string run_head(const RunData& run);
std::string run_tiles(const RunData& run);
std::string run_advice(const RunData& run);
std::string run_charts(const RunData& run);
std::string run_stalls(const RunData& run);
std::string run_time(const RunData& run);
/// What the trainer found: results/report.json (docs/formats/run.md#resultsreportjson).
std::string run_results(const RunData& run);
/// The newest pictures and histograms of media/.
std::string run_media(const RunData& run);
/// Tiles of results/report.json.
std::string result_tiles(const RunData& run);
std::string run_settings(const RunData& run);
std::string run_repeat(const RunData& run);
std::string run_machine(const RunData& run);

// ---- Values of a run, by step.

/// Returns the finite and non-finite values named `metric` of one split; of a long run the extremes.
std::vector<ChartPoint> points_of(const RunData& run, std::string_view split, std::string_view metric);
/// Returns the same values; of a long run the means of neighbours.
std::vector<ChartPoint> means_of(const RunData& run, std::string_view split, std::string_view metric);
/// Returns these by elapsed seconds instead of steps; empty if a time is unknown.
std::vector<ChartPoint> means_by_time(const RunData& run, std::string_view split, std::string_view metric);
/// Whether all finite values are in [0, 1].
bool are_shares(const std::vector<ChartPoint>& points);
/// Names of the values of evaluations, without the loss, details (with a dot) and times.
std::vector<std::string> score_names(const RunData& run);

// ---- Several runs.

/// Rows of the comparison: a name, and a text for each run.
struct ComparedRow {
  std::string name;
  std::vector<std::string> values;
};
struct Comparison {
  std::vector<std::string> names;  // of the runs, unique
  std::vector<ComparedRow> outcome, settings;
};
Comparison compare(const std::vector<RunData>& runs);
std::string comparison_page(const std::vector<RunData>& runs);

}  // namespace trainkit::detail
