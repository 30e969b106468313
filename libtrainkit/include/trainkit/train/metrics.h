#pragma once
/// Means, errors of regressions and scores of classifiers that are the same for any split of the rows into
/// micro-batches, replicas and ranks.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/score.h"

namespace trainkit {

namespace detail {
class ReplicaScores;
}

/// Mean of values, weighted if wanted. torchmetrics' MeanMetric, in float64; but a NaN makes the mean NaN, and a value
/// of weight 0 does not count, NaN included. NaN without values.
class MeanMetric final : public Score {
 public:
  /// @param name key of the mean in result(). @param weight_field field of the batches with the weight of each row;
  /// empty: 1 each.
  explicit MeanMetric(std::string name = "mean", std::string weight_field = {}, at::Device device = at::kCPU);
  /// Adds values of any shape and dtype, each with its weight, a tensor that broadcasts to their shape; undefined: 1
  /// each. Does not synchronise.
  void add(const at::Tensor& values, const at::Tensor& weights = {});
  /// As add(outputs), with the weights of weight_field.
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::unique_ptr<Score> empty_on(at::Device device) const override;
  std::vector<at::Tensor> sums() const override { return {sums_}; }
  Metrics result() const override;

 private:
  std::string name_, weight_field_;
  at::Tensor sums_;  // values times weights, weights
};

struct RegressionMetricsOptions {
  /// Field of the batches with the targets, of any dtype.
  std::string target_field = "y";
  /// Before the keys of result(): "force_" makes "force_mae".
  std::string prefix = {};
};

/// Errors of a regression over all elements, in float64: "mae" (mean absolute error), "rmse" (root of the mean squared
/// error) and "r2" (coefficient of determination). torchmetrics' MeanAbsoluteError, MeanSquaredError(squared=False) and
/// R2Score; but "r2" is NaN if all targets are equal, and one number for all columns. A NaN makes all NaN, as does an
/// evaluation without rows. "r2" is accurate for targets far from 0: the spread is merged by the formula of Chan et al.
/// (1979), not by sums of squares.
class RegressionMetrics final : public Score {
 public:
  explicit RegressionMetrics(RegressionMetricsOptions options = {}, at::Device device = at::kCPU);
  /// Adds predictions, (B, ...), and targets with as many elements: sizes are equal but for dimensions of size 1, else
  /// throws c10::ValueError. Does not synchronise.
  void add(const at::Tensor& predictions, const at::Tensor& targets);
  /// As add(outputs, rows[target_field]).
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::unique_ptr<Score> empty_on(at::Device device) const override;
  /// Elements, mean of the targets, sum of their squared distances from it, squared errors, absolute errors.
  std::vector<at::Tensor> sums() const override { return {sums_}; }
  Metrics result() const override;
  void merge(const Score& other) override;
  absl::Status merge_ranks(ProcessGroup& group) override;

 private:
  RegressionMetricsOptions options_;
  at::Tensor sums_;
};

struct ClassificationMetricsOptions {
  int64_t classes = 2;
  /// How precision, recall and F1 of the classes become one number.
  enum class Average {
    kBinary,   ///< Those of class 1; `classes` is 2.
    kMicro,    ///< Of all rows together: each equals the accuracy.
    kMacro,    ///< The mean over the classes that have rows or predictions.
    kWeighted  ///< The mean weighted by the rows of each class.
  };
  Average average = Average::kMacro;
  /// With one output per row: a row is of class 1 if its output is larger. 0 is for logits, 0.5 for probabilities.
  double threshold = 0;
  /// Field of the batches with the classes, (B, ...), of any dtype; a row with a negative one does not count.
  std::string target_field = "y";
  /// Before the keys of result().
  std::string prefix = {};
};

/// Counts the rows of each pair of true and predicted class: "accuracy" (share of correct rows), "precision", "recall"
/// and "f1". torchmetrics' Accuracy with average="micro", and Precision, Recall and F1Score of the same average; a
/// score that would divide by zero is 0. All are NaN without rows, and if an output of a row that counts is NaN.
class ClassificationMetrics final : public Score {
 public:
  /// Throws c10::ValueError for options that contradict each other.
  explicit ClassificationMetrics(ClassificationMetricsOptions options, at::Device device = at::kCPU);
  /// Adds outputs and the classes of their rows, targets (B, ...). Outputs are scores (B, C, ...) in floating point; or
  /// with two classes one output per row, (B, ...) or (B, 1) in floating point; or predicted classes (B, ...), integers
  /// or bool. Throws c10::ValueError for other sizes. A class out of range, or a target that is no integer, throws
  /// c10::IndexError on the CPU; on CUDA a later call reports it. Does not synchronise.
  void add(const at::Tensor& outputs, const at::Tensor& targets);
  /// As add(outputs, rows[target_field]).
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::unique_ptr<Score> empty_on(at::Device device) const override;
  std::vector<at::Tensor> sums() const override { return {matrix_.cells(), nan_rows_}; }
  Metrics result() const override;

 private:
  ClassificationMetricsOptions options_;
  ConfusionMatrix matrix_;
  at::Tensor nan_rows_;
};

struct AUROCOptions {
  /// Field of the batches with the classes, 0 or 1, (B) of any dtype; a row with a negative one does not count.
  std::string target_field = "y";
  /// Key of result().
  std::string name = "auroc";
};

/// Area under the ROC curve of two classes, exact: the share of pairs of a row of class 1 and one of class 0 of which
/// the first has the larger output, with half of the pairs that are equal. torchmetrics' BinaryAUROC; but NaN if a
/// class has no rows or if an output is NaN. Keeps all outputs and classes, 5 to 9 bytes per row, on the device, and
/// sorts them once on the CPU.
class AUROC final : public Score {
 public:
  explicit AUROC(AUROCOptions options = {}, at::Device device = at::kCPU);
  /// Adds outputs, logits or probabilities (B), (B, 1) or (B, 2), and the classes of their rows, targets (B). Throws
  /// c10::ValueError for other sizes. Does not synchronise.
  void add(const at::Tensor& outputs, const at::Tensor& targets);
  /// As add(outputs, rows[target_field]).
  void update(const at::Tensor& outputs, const Batch& rows) override;
  std::unique_ptr<Score> empty_on(at::Device device) const override;
  /// Nothing: rows are kept, not added.
  std::vector<at::Tensor> sums() const override { return {}; }
  /// Throws c10::ValueError for a class that is neither 0 nor 1.
  Metrics result() const override;
  void merge(const Score& other) override;
  absl::Status merge_ranks(ProcessGroup& group) override;

 private:
  AUROCOptions options_;
  at::Device device_;
  std::vector<at::Tensor> outputs_, targets_;
};

/// Several scores over all replicas and ranks, for the loss of an evaluation. Each device has its own part, of which
/// nothing is read before the end. Copies share the rows, so a loss function captures the collection by value.
///
///   const MetricCollection scores(ClassificationMetrics({.classes = 10}), MeanMetric("score"));
///   fit.validation_loss = [scores](Net& net, const Batch& batch) {
///     const at::Tensor outputs = net->forward(batch["x"]);
///     scores.update(outputs, batch);
///     return cross_entropy(outputs, batch["y"]);
///   };
///   fit.on_evaluation = [&](int64_t, Metrics& metrics) {
///     const absl::Status added = scores.add_scores(devices->process_group(), metrics);
///     if (!added.ok()) throw absl::BadStatusOrAccess(added);
///   };
///
/// Use it in evaluations: a training step that runs out of memory counts its rows again.
class MetricCollection {
 public:
  /// Takes scores without rows. Throws c10::ValueError if two results have the same name.
  template <class... S>
  requires(sizeof...(S) > 0 && (std::derived_from<S, Score> && ...)) explicit MetricCollection(S... scores)
      : MetricCollection(list(std::make_shared<S>(std::move(scores))...)) {}
  explicit MetricCollection(const std::vector<std::shared_ptr<const Score>>& scores);

  /// Adds the rows of a batch, without its padding rows, to each score: Score::update. Thread-safe. Does not
  /// synchronise.
  void update(const at::Tensor& outputs, const Batch& batch) const;
  /// Writes the results of the rows of all replicas and ranks into `metrics`, and begins anew. A collective: all ranks
  /// call it and get the same results; `group` is DeviceReplicator::process_group(), nullptr without ranks.
  /// Synchronises. Errors: those of other ranks.
  absl::Status add_scores(ProcessGroup* group, Metrics& metrics) const;

 private:
  static std::vector<std::shared_ptr<const Score>> list(auto... scores) { return {std::move(scores)...}; }

  std::vector<std::shared_ptr<detail::ReplicaScores>> scores_;
};

}  // namespace trainkit
