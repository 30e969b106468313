#pragma once
/// The files, page and table of a tested classification.

#include <absl/status/status.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/tasks/classification.h"

namespace trainkit::detail {

/// Counts of a classification: a confusion matrix.
class ConfusionScore final : public Score {
 public:
  ConfusionScore(int64_t classes, std::string label_field, at::Device device = at::kCPU)
      : label_field_(std::move(label_field)), matrix_(classes, device) {}
  std::unique_ptr<Score> empty_on(at::Device device) const override {
    return std::make_unique<ConfusionScore>(matrix_.num_classes(), label_field_, device);
  }
  void update(const at::Tensor& outputs, const Batch& rows) override {
    matrix_.add(rows[label_field_], outputs.argmax(1));
  }
  std::vector<at::Tensor> sums() const override { return {matrix_.cells()}; }
  /// "accuracy", "aa", "kappa", "weighted_f1" and "macro_f1".
  Metrics result() const override;
  const ConfusionMatrix& matrix() const { return matrix_; }

 private:
  std::string label_field_;
  ConfusionMatrix matrix_;
};

/// Draws a confusion matrix, (C, C) int64 on the CPU, as SVG: one row per true label, each cell shaded by its share of
/// the row.
std::string draw_confusion(const at::Tensor& counts, const std::vector<std::string>& labels);

ClassificationScores scores_of(const Score& score);
absl::Status write_classification(const std::string& folder, const Task& task, const ClassificationOptions& options,
                                  const TestedRows& tested, ResultPage& page);
/// See Task.
std::vector<std::string> prediction_columns(const ClassificationOptions& options);
std::vector<std::string> prediction_fields(const ClassificationOptions& options, const at::Tensor& predictions,
                                           int64_t row);
/// A Markdown table of the scores of each class.
std::string class_table(const ClassificationOptions& options, const TestedRows& tested);

}  // namespace trainkit::detail
