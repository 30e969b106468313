#pragma once
/// Writes results/report.json: what a trainer adds to report.html (docs/formats/run.md#resultsreportjson).

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace trainkit {

/// Collects tiles and sections of a report, in order. Everything is text: the page escapes it. Contents must follow
/// from the weights alone, without times, so that a resumed run writes the same file.
class ResultPage {
 public:
  /// A cell of a table: text, an integer, or a share of 1, which is shown as a percentage with a bar.
  using Cell = std::variant<std::string, int64_t, double>;
  /// Name and points (x, y) of a line.
  using Line = std::pair<std::string, std::vector<std::pair<double, double>>>;

  ResultPage();
  ~ResultPage();
  ResultPage(ResultPage&&) noexcept;
  ResultPage& operator=(ResultPage&&) noexcept;

  /// Adds a figure to the top of the page: add_tile("99.61%", "overall accuracy", "1,200 test pixels").
  void add_tile(const std::string& value, const std::string& name, const std::string& note);

  /// Starts a section. The blocks that follow belong to it.
  void add_section(const std::string& title);
  void add_note(const std::string& text);
  void add_table(const std::string& caption, const std::vector<std::string>& columns,
                 const std::vector<std::vector<Cell>>& rows);
  /// A confusion matrix (C, C) int64 on the CPU, one row per true label.
  void add_matrix(const std::string& caption, const std::vector<std::string>& labels, const at::Tensor& counts);
  /// A line chart. Both axes are shares of 1.
  void add_chart(const std::string& title, const std::string& x_label, const std::vector<Line>& lines);
  /// A PNG file of the folder that write() gets. `alt` describes it to readers who do not see it.
  void add_picture(const std::string& file, const std::string& caption, const std::string& alt);
  /// Names and colours ("#rrggbb") of the pictures before.
  void add_legend(const std::vector<std::pair<std::string, std::string>>& names_and_colors);
  /// A text with a title, such as a generated sample.
  void add_text(const std::string& title, const std::string& text);

  /// Writes `<folder>/report.json`; `folder` is results_dir(). Errors: exit code 6.
  absl::Status write(const std::string& folder) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns a note on the weights that were tested: those of the best step, or the last ones if it is negative.
std::string tested_weights_note(int64_t best_step);

}  // namespace trainkit
