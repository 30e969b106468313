#pragma once
/// How often each class was taken for each other, counted where the predictions are, and the scores that follow.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// Counts of (true class, predicted class), on a device.
///
///   ConfusionMatrix confusion(16, device);
///   confusion.add(labels, model->forward(x).argmax(1));       // per batch; the host does not wait
///   const ClassificationScores scores = score(confusion.counts());
///
/// One thread. Sums are exact: the order of the batches, and how they are shared among devices, does not matter.
class ConfusionMatrix {
 public:
  /// Throws c10::ValueError unless there is a class.
  explicit ConfusionMatrix(int64_t num_classes, at::Device device = at::kCPU);

  /// Counts n rows: (n) int64 each, on any device, classes below num_classes. A negative true class is no class: such
  /// rows are left out. On the CPU a class that is too large throws c10::Error; on CUDA it is an error of a later call.
  void add(const at::Tensor& truth, const at::Tensor& predicted);

  /// Adds what another has counted.
  void add(const ConfusionMatrix& other);

  /// Makes them the counts of all ranks, which all call it. Errors are those of ProcessGroup.
  absl::Status add_other_ranks(ProcessGroup& group);

  /// (num_classes, num_classes) int64 on the CPU, a row for each true class. Waits for the device.
  at::Tensor counts() const;

  int64_t num_classes() const { return num_classes_; }

 private:
  int64_t num_classes_;
  at::Tensor cells_;  // num_classes^2 counts, and one for the rows that are left out
};

/// One class among the rest; each is 0 where it would divide by zero (scikit-learn: zero_division=0).
struct ClassScore {
  /// Rows of this class.
  int64_t rows = 0;
  /// Of what was taken for this class, the share that is.
  double precision = 0;
  /// Of this class, the share that was found: the accuracy of the class.
  double recall = 0;
  double f1 = 0;
};

/// Scores of a confusion matrix, as fractions of 1.
struct ClassificationScores {
  int64_t rows = 0;
  /// Overall accuracy: the share of rows that are right. scikit-learn's accuracy_score.
  double oa = 0;
  /// Average accuracy: the mean of the recalls of the classes that have rows. scikit-learn's balanced_accuracy_score.
  double aa = 0;
  /// Cohen's kappa: agreement beyond that of chance (Cohen 1960). scikit-learn's cohen_kappa_score; NaN, as there, if
  /// all rows are of one class and taken for it.
  double kappa = 0;
  /// Means of the F1 of the classes, by their rows, and of each the same among those that have rows or predictions.
  /// scikit-learn's f1_score with average="weighted" and "macro".
  double weighted_f1 = 0;
  double macro_f1 = 0;
  std::vector<ClassScore> classes = {};
};

/// The scores of `counts`, (C, C) int64 on the CPU with a row for each true class. NaN without rows.
ClassificationScores score(const at::Tensor& counts);

}  // namespace trainkit
