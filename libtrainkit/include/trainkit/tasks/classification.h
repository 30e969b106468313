#pragma once
/// Classification: each row belongs to one class.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/tasks/task.h"

namespace trainkit {

struct ClassificationOptions {
  /// Name of each class, in the order of the model's outputs. Empty: "0", "1", ... up to `classes`.
  std::vector<std::string> labels = {};
  int64_t classes = 0;
  /// The value of each class in the user's files, for scores.json. May be empty.
  std::vector<int64_t> label_values = {};
  /// Field of the batches with the class of each row, (B) int64. A row with a negative one counts in no score.
  std::string label_field = "y";

  /// Rows of each class in the training set. Not empty: with `weights_classes` the training loss weights the classes
  /// inversely to them, and scores have "majority", the accuracy of always predicting the most frequent one.
  std::vector<int64_t> training_counts = {};
  bool weight_classes = false;
  double label_smoothing = 0;

  /// Metric by which the best weights are chosen: "loss", or the key of a score, which is better when higher.
  std::string monitor = "loss";
  /// Scores to show. The keys are "accuracy" (or accuracy_key), "aa" (mean recall of the classes), "kappa",
  /// "weighted_f1", "macro_f1", "majority", "unreadable", and what App::on_results adds.
  std::vector<ScoreName> scores = {
      {"accuracy", "accuracy"}, {"macro_f1", "macro F1"}, {"unreadable", "unreadable", ScoreName::Kind::kCount, true}};
  /// Keys of further scores that an evaluation has.
  std::vector<std::string> validation_scores = {"macro_f1"};
  /// Name of the share of correct rows in all metrics: hyperspectral imaging says "oa".
  std::string accuracy_key = "accuracy";
  /// Whether metrics have "recall.<label>" of each class with rows.
  bool recalls = false;

  /// Words for a row and for a class.
  std::string row_word = "row";
  std::string class_word = "class";
  /// Title of the section in the report.
  std::string title = "Classification of the test rows";
  /// Name of each row of the test set. Not empty: predictions.csv lists the rows with their probabilities, and the
  /// report those that the model got wrong or was least sure of.
  std::function<std::string(int64_t row)> row_name = {};
  /// The class of each row of the test set, also of those that cannot be read. Empty: the label field of rows that are
  /// read.
  std::function<int64_t(int64_t row)> label_of = {};
  /// Rows known to be unreadable before the test, for the report.
  std::vector<BadSample> absent = {};
  /// Keeps the predicted class of each row of the test instead of all probabilities: TestedRows::predictions is (N)
  /// int64, and 1 + the class.
  bool keep_classes_only = false;
};

namespace detail {
std::shared_ptr<Task> make_classification(ModelOutputs outputs, ClassificationOptions options);
}

/// Makes the task of a classifier. The training loss is the cross-entropy, with class weights and label smoothing; the
/// sum is divided by the number of rows, not by the sum of the weights, so that replicas' losses combine to that of one
/// process on the whole batch. The validation loss has neither, so that runs can be compared. Writes scores.json,
/// confusion.svg and, with row_name, predictions.csv.
///
///   task.task = classification([](Net& net, const Batch& batch) { return net->forward(batch["x"]); }, {.classes =
///   10});
///
/// @param outputs returns scores (B, C), from the user's own model type.
template <class F>
std::shared_ptr<Task> classification(F outputs, ClassificationOptions options) {
  return detail::make_classification(any_model(std::move(outputs)), std::move(options));
}

/// Returns class weights (C) float32, inversely proportional to the row counts of the classes, with mean 1 over the
/// rows; 0 for a class without rows.
at::Tensor class_weights(const std::vector<int64_t>& counts);

}  // namespace trainkit
