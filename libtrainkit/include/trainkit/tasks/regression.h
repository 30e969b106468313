#pragma once
/// Regression: each row has a number as its target.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/tasks/task.h"

namespace trainkit {

struct RegressionOptions {
  /// Field of the batches with the target of each row, (B) float32 or float64, in its own units.
  std::string target_field = "y";
  /// What the target is and its unit, for tables: "price", "EUR".
  std::string target = "target";
  std::string unit = {};
  /// The model predicts (target - mean) / deviation; losses are of these, scores and predictions of the target itself.
  double mean = 0;
  double deviation = 1;
  /// The loss: mean squared error, or with huber_delta > 0 Huber's (Huber 1964) with this delta, in deviations.
  double huber_delta = 0;
  /// Metric by which the best weights are chosen: "loss" or "r2".
  std::string monitor = "loss";
  std::string row_word = "row";
  std::string title = "Regression of the test rows";
  /// Name of each row of the test set, for predictions.csv and the report. Empty: its number, from 0.
  std::function<std::string(int64_t row)> row_name = {};
};

namespace detail {
std::shared_ptr<Task> make_regression(ModelOutputs outputs, RegressionOptions options);
}

/// Makes the task of a regression. Writes scores.json and predictions.csv (target, prediction and error of each row).
///
///   task.task = regression([](Net& net, const Batch& batch) { return net->forward(batch["x"]); }, {.target =
///   "price"});
///
/// @param outputs returns standardised predictions (B) or (B, 1), from the user's own model type.
template <class F>
std::shared_ptr<Task> regression(F outputs, RegressionOptions options = {}) {
  return detail::make_regression(any_model(std::move(outputs)), std::move(options));
}

}  // namespace trainkit
