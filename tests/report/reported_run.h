#pragma once
/// The files of a run that is reported, and its report.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "report/report.h"
#include "test_util.h"
#include "trainkit/logging/sinks.h"

namespace trainkit::test {

/// Writes a file and creates its folder.
inline void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

inline LogRecord train_record(int64_t step, double loss) {
  return {.step = step,
          .epoch = static_cast<double>(step) / 100,
          .values = {{"loss", loss},
                     {"grad_norm", 0.5},
                     {"samples_per_second", 800},
                     {"data_wait_fraction", 0.02},
                     {"utilisation", 0.98}},
          .lr = {1e-3}};
}

inline LogRecord val_record(int64_t step, double loss) {
  return {.step = step, .split = "val", .values = {{"loss", loss}, {"oa", 0.75}, {"evaluation_seconds", 0.25}}};
}

/// Writes records without times, one per second as in a file with times.
inline void write_records(const std::string& run, const std::vector<LogRecord>& records, double first_time = 0) {
  std::string text;
  for (size_t i = 0; i < records.size(); ++i) {
    std::string line = to_json(records[i]);
    if (first_time > 0) {
      line.pop_back();
      line += ",\"time\":" + std::to_string(first_time + static_cast<double>(i)) + "}";
    }
    text += line + "\n";
  }
  write_text(run + "/metrics.jsonl", text);
}

/// The page of a run's report; the test fails if there is none.
inline std::string page_of(const std::string& run) {
  const auto page = detail::render_report({run});
  INFO(page.status());
  REQUIRE(page.ok());
  return *page;
}

}  // namespace trainkit::test
