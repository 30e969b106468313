#include "tasks/classification_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/table.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::ordered_json;
using Cell = ResultPage::Cell;

std::string percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

at::Tensor counts_of(const Score& score) { return dynamic_cast<const ConfusionScore&>(score).matrix().counts(); }

/// "class" and "classes", "label" and "labels".
std::string plural(const std::string& word) { return word + (word.ends_with('s') ? "es" : "s"); }

Json json_of(const ClassificationOptions& options, const TestedRows& tested) {
  const ClassificationScores scores = scores_of(*tested.score);
  const at::Tensor counts = counts_of(*tested.score);
  Json json = Json::object(), classes = Json::array(), confusion = Json::array();
  for (const auto& [name, value] : tested.scores) {
    if (!name.starts_with("recall.")) json[name] = value;
  }
  json["rows"] = scores.rows;
  if (options.monitor != "loss" && tested.step >= 0) {
    json["best"] = {{"step", tested.step}, {"val_" + options.monitor, tested.best}};
  }
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    const ClassScore& score = scores.classes[k];
    classes.push_back({{"name", escape_text(options.labels[k])}});
    if (!options.label_values.empty()) classes.back()["label"] = options.label_values[k];
    classes.back().update(
        Json{{"rows", score.rows}, {"precision", score.precision}, {"recall", score.recall}, {"f1", score.f1}});
    const at::Tensor row = counts[static_cast<int64_t>(k)];
    confusion.push_back(
        std::vector<int64_t>(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()));
  }
  json[plural(options.class_word)] = std::move(classes);
  json["confusion"] = std::move(confusion);
  return json;
}

/// A tested row with the probability of its true label and of the predicted one.
struct RowScore {
  int64_t row = 0, label = 0, predicted = 0;
  double of_true = 0, of_predicted = 0;
};

/// Returns the class of a test row; negative if it has none.
int64_t label_of(const ClassificationOptions& options, const TestedRows& tested, int64_t row) {
  if (options.label_of) return options.label_of(row);
  return tested.read.const_data_ptr<bool>()[row] ? tested.truth.const_data_ptr<int64_t>()[row] : -1;
}

std::string label_name(const ClassificationOptions& options, int64_t label) {
  return label < 0 ? std::string() : options.labels[static_cast<size_t>(label)];
}

/// Returns the rows that were read, in order.
std::vector<RowScore> score_rows(const ClassificationOptions& options, const TestedRows& tested) {
  std::vector<RowScore> scores;
  const at::Tensor predicted = tested.predictions.argmax(1);
  const auto probabilities = tested.predictions.accessor<float, 2>();
  const auto read = tested.read.accessor<bool, 1>();
  const auto best = predicted.accessor<int64_t, 1>();
  for (int64_t i = 0; i < tested.size(); ++i) {
    const int64_t label = label_of(options, tested, i);
    if (!read[i] || label < 0) continue;
    scores.push_back({i, label, best[i], probabilities[i][label], probabilities[i][best[i]]});
  }
  return scores;
}

std::string predictions_csv(const ClassificationOptions& options, const TestedRows& tested) {
  std::string text = options.row_word + ",label";
  const std::vector<std::string> columns = prediction_columns(options);
  for (const std::string& column : columns) text += "," + csv_field(column);
  text += "\n";
  for (int64_t i = 0; i < tested.size(); ++i) {
    text += csv_field(options.row_name(i)) + "," + csv_field(label_name(options, label_of(options, tested, i)));
    if (tested.read.const_data_ptr<bool>()[i]) {
      for (const std::string& field : prediction_fields(options, tested.predictions, i)) text += "," + csv_field(field);
    } else {
      text += std::string(columns.size(), ',');
    }
    text += "\n";
  }
  return text;
}

/// Adds a table of the first of some rows.
void add_rows(ResultPage& page, const std::string& caption, const ClassificationOptions& options,
              const std::vector<RowScore>& scores) {
  constexpr size_t kMostRows = 15;
  std::vector<std::vector<Cell>> rows;
  for (const RowScore& score : scores) {
    if (rows.size() == kMostRows) break;
    rows.push_back({options.row_name(score.row), label_name(options, score.label), label_name(options, score.predicted),
                    score.of_true, score.of_predicted});
  }
  if (rows.empty()) return;
  page.add_table(caption, {options.row_word, "true", "predicted", "p(true)", "p(predicted)"}, rows);
}

/// Lists the test rows that are in no score: absent ones, and those that this rank could not read.
void add_unreadable(ResultPage& page, const ClassificationOptions& options, const TestedRows& tested) {
  std::map<std::string, std::string> causes;
  for (const auto* samples : {&options.absent, &tested.bad_samples}) {
    for (const BadSample& sample : *samples) causes.emplace(sample.name, sample.cause);
  }
  if (causes.empty()) return;
  std::vector<std::vector<Cell>> rows;
  rows.reserve(causes.size());
  for (const auto& [name, cause] : causes) rows.push_back({escape_text(name), escape_text(cause, 400)});
  page.add_table("Could not be read", {options.row_word, "reason"}, rows);
}

void add_rows_section(ResultPage& page, const ClassificationOptions& options, const TestedRows& tested) {
  std::string title = plural(options.row_word);
  title[0] = static_cast<char>(std::toupper(title[0]));
  page.add_section(title);
  std::vector<RowScore> rows = score_rows(options, tested);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const RowScore& a, const RowScore& b) { return a.of_predicted > b.of_predicted; });
  std::vector<RowScore> wrong = rows, right = rows;
  std::erase_if(wrong, [](const RowScore& score) { return score.label == score.predicted; });
  std::erase_if(right, [](const RowScore& score) { return score.label != score.predicted; });
  add_rows(page, "Wrong, the surest first", options, wrong);
  add_rows(page, "Right, the surest first", options, right);
  std::reverse(rows.begin(), rows.end());
  add_rows(page, "The least sure", options, rows);
  add_unreadable(page, options, tested);
}

}  // namespace

std::vector<std::string> prediction_columns(const ClassificationOptions& options) {
  std::vector<std::string> columns = {"predicted"};
  for (const std::string& label : options.labels) columns.push_back("p_" + label);
  return columns;
}

std::vector<std::string> prediction_fields(const ClassificationOptions& options, const at::Tensor& predictions,
                                           int64_t row) {
  const at::Tensor probabilities = predictions[row].contiguous();
  const auto* const each = probabilities.const_data_ptr<float>();
  std::vector<std::string> fields = {label_name(options, std::max_element(each, each + probabilities.numel()) - each)};
  for (int64_t k = 0; k < probabilities.numel(); ++k) fields.push_back(fmt::format("{:.6g}", each[k]));
  return fields;
}

ClassificationScores scores_of(const Score& score) { return classification_scores(counts_of(score)); }

absl::Status write_classification(const std::string& folder, const Task& task, const ClassificationOptions& options,
                                  const TestedRows& tested, ResultPage& page) {
  const at::Tensor counts = counts_of(*tested.score);
  TRAINKIT_RETURN_IF_ERROR(
      write_file_atomically(Fs::posix(), folder + "/scores.json", json_of(options, tested).dump(2) + "\n"));
  TRAINKIT_RETURN_IF_ERROR(
      write_file_atomically(Fs::posix(), folder + "/confusion.svg", draw_confusion(counts, options.labels)));
  const ClassificationScores scores = scores_of(*tested.score);
  add_score_tiles(task, tested, scores.rows, page);
  page.add_section(options.title);
  page.add_note(tested_weights_note(tested.step));
  std::vector<std::vector<Cell>> classes;
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    const ClassScore& score = scores.classes[k];
    classes.push_back({options.labels[k], score.rows, score.recall, score.precision, score.f1});
  }
  page.add_table("Each " + options.class_word,
                 {options.class_word, plural(options.row_word), "recall", "precision", "F1"}, classes);
  page.add_matrix("Confusion matrix", options.labels, counts);
  if (!options.row_name) return absl::OkStatus();
  add_rows_section(page, options, tested);
  return write_file_atomically(Fs::posix(), folder + "/predictions.csv", predictions_csv(options, tested));
}

std::string class_table(const ClassificationOptions& options, const TestedRows& tested) {
  std::string text = fmt::format("| {} | {} | recall | precision | F1 |\n|---|---|---|---|---|\n", options.class_word,
                                 plural(options.row_word));
  const ClassificationScores scores = scores_of(*tested.score);
  for (size_t k = 0; k < scores.classes.size(); ++k) {
    const ClassScore& score = scores.classes[k];
    text += fmt::format("| {} | {} | {} | {} | {} |\n", escape_text(options.labels[k]), score.rows,
                        percent(score.recall), percent(score.precision), percent(score.f1));
  }
  return text;
}

}  // namespace trainkit::detail
