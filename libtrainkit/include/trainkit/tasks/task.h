#pragma once
/// What a kind of task, such as classification, brings to a training: losses, scores, tests and their results.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/report/result_page.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/score.h"
#include "trainkit/train/step_options.h"

namespace trainkit {

namespace detail {
class ReplicaScores;
}

/// A score that users see.
struct ScoreName {
  enum class Kind {
    kPercent,  ///< A share of 1, shown as a percentage.
    kNumber,
    kCount  ///< Shown if it is not 0.
  };
  /// Its name in metrics.jsonl and in the results: "weighted_f1".
  std::string key = {};
  /// Its name in lines and tables: "weighted F1".
  std::string title = {};
  Kind kind = Kind::kPercent;
  /// Shown in brackets after the other scores: it explains them.
  bool aside = false;
  /// Its name on the page; empty: the title.
  std::string long_title = {};
};

/// The rows of a data set after a test, in its order.
struct TestedRows {
  /// Task::prediction of each row, (N, ...) on the CPU, and Task::truth, (N); zeros for a row that could not be read,
  /// and (N) without predictions.
  at::Tensor predictions = {};
  at::Tensor truth = {};
  /// (N) bool on the CPU: rows that were read.
  at::Tensor read = {};
  /// Rows that this rank could not read.
  std::vector<BadSample> bad_samples = {};
  /// Of the rows of all ranks. App::on_results may add to it.
  Metrics scores = {};
  std::shared_ptr<const Score> score = nullptr;
  /// Step of the tested weights, and the value of Task::monitor there; -1: the last weights.
  int64_t step = -1;
  double best = 0;
  /// Epochs that the run has trained, those before a resume included.
  double epochs = 0;

  int64_t size() const { return read.defined() ? read.size(0) : 0; }
};

/// Weights that a task shows besides their scores.
struct ShownWeights {
  torch::nn::Module& model;
  int64_t step = 0;
  /// Metrics of their evaluation; empty without one.
  const Metrics& metrics;
  /// False: the weights of an evaluation. True: those at the end of a run, the best in validation or the last ones.
  bool at_end = false;
  bool is_best = false;
};

/// Returns the outputs (B, ...) of a model for a batch. Called by the threads of all replicas at the same time.
using ModelOutputs = std::function<at::Tensor(torch::nn::Module& model, const Batch& batch)>;

/// Makes ModelOutputs of a function of your own model type, a module holder or its implementation, and a batch.
template <class F>
ModelOutputs any_model(F outputs) {
  return detail::of_any_model(std::move(outputs));
}

/// The test of a trained model: its scores, and how lines, tables and files show them. Task tests row by row. Derive
/// from this class for another test, such as a ranking of all items for each user (TrainingTask::test).
class ModelTest {
 public:
  virtual ~ModelTest() = default;

  /// Tests the model. `loader` has the `rows` rows of TrainingTask::test_set; nullptr without one. Needs to set
  /// TestedRows::scores alone; the other fields are for write() and table(). A collective: all ranks call it, and the
  /// result of rank 0 is used. Synchronises.
  virtual absl::StatusOr<TestedRows> test(DeviceReplicator& devices, Prefetcher* loader, int64_t rows,
                                          Precision precision, ProcessGroup* group) const = 0;
  /// Scores that lines and tables show, in this order. The page shows each but asides as a tile. "unreadable" is the
  /// number of rows that no rank could read; Task::scores need not have it.
  virtual std::vector<ScoreName> score_names() const = 0;
  /// The metric of the evaluation by which the best weights are chosen. All but "loss" are better when higher.
  virtual std::string monitor() const { return "loss"; }
  /// Writes the files of a result into `folder` and adds to the page. Errors: exit code 6.
  virtual absl::Status write(const std::string& folder, const TestedRows& tested, ResultPage& page) const = 0;
  /// Returns scores in more detail as Markdown, for logs: a table of the classes.
  virtual std::string table(const TestedRows& tested) const = 0;
};

/// A kind of task: how outputs of a model become a loss, scores and results. classification(), regression() and
/// language() make the common ones. For another kind derive from this class (examples/multi_label.cpp).
///
/// Works with Trainer alone: pass training_loss() to fit(), validation_loss() as its FitOptions::validation_loss, and
/// call add_scores() in on_evaluation. run_app() does so for TrainingTask::task, and tests, writes and shows the
/// results.
class Task : public ModelTest, public std::enable_shared_from_this<Task> {
 public:
  /// @param score a score without rows, of which the replicas get their own.
  Task(ModelOutputs outputs, const std::shared_ptr<const Score>& score);

  /// The loss of `outputs` of a batch and further means; `trains` is false in evaluation. Must not synchronise.
  virtual LossOutput loss(const at::Tensor& outputs, const Batch& batch, bool trains) const = 0;
  /// What a test and `predict` keep of the outputs of some rows, (B, ...) on their device: probabilities, or values in
  /// the target's units. An undefined tensor keeps nothing.
  virtual at::Tensor prediction(const at::Tensor& outputs) const { return outputs; }
  /// What is true of these rows, (B) on their device. An undefined tensor keeps nothing.
  virtual at::Tensor truth(const Batch& rows) const = 0;
  /// The scores of an evaluation or of a test, by default all results of `score`.
  virtual Metrics scores(const Score& score, bool /*is_test*/) const { return score.result(); }
  /// The scores of an evaluation, given its means, among them "loss".
  virtual Metrics evaluation_scores(const Score& score, const Metrics& /*means*/) const {
    return scores(score, /*is_test=*/false);
  }
  /// Singular of what a row is: "row", "clip".
  virtual std::string row_word() const { return "row"; }
  /// Whether show() adds something at evaluations, and at the end of a run. A run then has results without a test too.
  virtual bool shows_weights(bool /*at_end*/) const { return false; }
  /// Shows what weights do, such as texts that they generate: writes files into `folder`, adds to the page, and returns
  /// lines for the user at the end of the run. Rank 0 calls it after evaluations, and at the end before write(). Must
  /// not draw from the default random generators.
  virtual absl::StatusOr<std::string> show(const ShownWeights& /*weights*/, const std::string& /*folder*/,
                                           ResultPage& /*page*/) const {
    return std::string();
  }
  /// Names and fields of the columns of `predict`'s table for row `row` of `predictions`, after the row's name.
  virtual std::vector<std::string> prediction_columns() const = 0;
  virtual std::vector<std::string> prediction_fields(const at::Tensor& predictions, int64_t row) const = 0;

  const ModelOutputs& outputs() const { return outputs_; }
  /// These keep the task alive.
  LossFunction training_loss() const;
  LossFunction validation_loss() const;
  /// Adds the scores of the rows that validation_loss() has seen to the metrics of an evaluation; NaN where another
  /// rank failed. A collective: all ranks call it.
  absl::Status add_scores(ProcessGroup* group, Metrics& metrics) const;

  /// Computes outputs and scores of one epoch of `loader`, whose data set has `rows` rows, over all replicas and ranks,
  /// each row once. A collective: all ranks call it and get the same result. Synchronises. Errors: those of the loader
  /// and of other ranks; data.empty (exit code 4) if no row can be read.
  absl::StatusOr<TestedRows> test(DeviceReplicator& devices, Prefetcher* loader, int64_t rows, Precision precision,
                                  ProcessGroup* group) const override;

 private:
  ModelOutputs outputs_;
  std::shared_ptr<const Score> score_;
  std::shared_ptr<detail::ReplicaScores> validation_;
};

/// Adds a tile for each of the task's scores. The note of the first one has `rows`, the number of scored rows, and the
/// asides.
void add_score_tiles(const Task& task, const TestedRows& tested, int64_t rows, ResultPage& page);

}  // namespace trainkit
