#pragma once
/// Computes the loss and metrics of a model over a data set, or runs the model over all its batches; scores of
/// classifiers.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_options.h"

namespace trainkit {

// ---- Computes the loss and metrics of a model over a data set, or runs the model over all its batches.

/// Metrics by name, always including "loss".
using Metrics = std::map<std::string, double>;

/// Receives the progress of an evaluation after each batch: batches of this rank that are done, and all of them. Called
/// on the calling thread. On a GPU the last batches may still be computing.
using EvaluationProgress = std::function<void(int64_t done, int64_t total)>;

/// Computes the means of the loss and its metrics over one epoch of `loader`, over all replicas and ranks, weighted by
/// LossOutput::weight. A metric's mean is that of the batches that returned it; one of which nothing counted is left
/// out. Runs in evaluation mode without gradients and restores the mode of each module. All replicas and ranks compute
/// with the buffers (BatchNorm's statistics) of the first one, which are those that are saved. Starts at epoch 0, so
/// every evaluation sees the same rows in the same order. Sums are float64 on the device and are read once, at the end.
///
/// Every rank must call it, with its own share of the rows (a DistributedSampler with UnevenTail::kPad or kUneven).
/// Padding rows do not count, and every rank returns the same means.
///
/// Blocks the caller. Draws from no random generator unless the loss function does. Errors: those of the loader;
/// kInvalidArgument if the loader has no rows; those of other ranks (exit code 8).
absl::StatusOr<Metrics> evaluate(DeviceReplicator& devices, Prefetcher& loader, const LossFunction& loss,
                                 Precision precision = Precision::kFp32, const EvaluationProgress& on_progress = {});

/// Calls `visit` for the rows of one epoch of `loader`, starting at epoch 0. Runs in evaluation mode, without
/// gradients, in `precision`, and restores the mode of each module.
///
/// With several replicas each gets its share of a batch's rows on its device, and `visit` is called from one thread per
/// replica; it must write to state of that replica only. Padding rows (Batch::padding_rows) are included. Exceptions of
/// `visit` propagate; other errors are the loader's. Every rank calls it, because it begins with
/// DeviceReplicator::synchronize_buffers: all replicas compute with the statistics of BatchNorm that are saved.
absl::Status for_each_batch(
    DeviceReplicator& devices, Prefetcher& loader, Precision precision,
    const std::function<void(int64_t replica, torch::nn::Module& model, const Batch& rows)>& visit,
    const EvaluationProgress& on_progress = {});

// ---- Counts predictions per true class on the device and computes classification scores.

/// Counts pairs of (true class, predicted class) on a device.
///
///   ConfusionMatrix confusion(16, device);
///   confusion.add(labels, model->forward(x).argmax(1));       // per batch; the host does not wait
///   const ClassificationScores scores = classification_scores(confusion.counts());
///
/// A loss function may share one matrix between the threads of several replicas: calls of add() are thread-safe. Counts
/// are integers, so the result does not depend on the order of the batches or on how they are distributed over devices.
class ConfusionMatrix {
 public:
  /// Throws c10::ValueError if num_classes < 1.
  explicit ConfusionMatrix(int64_t num_classes, at::Device device = at::kCPU);

  /// Counts n rows: two tensors (n) int64, on any device, with classes below num_classes. Rows with a negative true
  /// class are ignored. A class out of range throws c10::IndexError on the CPU; on CUDA a later call reports it.
  void add(const at::Tensor& truth, const at::Tensor& predicted);

  /// Adds the counts of another matrix.
  void add(const ConfusionMatrix& other);

  /// Replaces the counts with their sum over all ranks. Every rank must call it. Errors are those of ProcessGroup.
  absl::Status add_other_ranks(ProcessGroup& group);

  /// Returns (num_classes, num_classes) int64 on the CPU, one row per true class. Waits for the device.
  at::Tensor counts() const;

  int64_t num_classes() const { return num_classes_; }

  /// Returns the counts on the device, for Score::sums.
  const at::Tensor& cells() const { return cells_; }

 private:
  /// A mutex of each matrix's own, so that matrices can be copied.
  struct OwnMutex : std::mutex {
    OwnMutex() = default;
    OwnMutex(const OwnMutex&) {}
    OwnMutex& operator=(const OwnMutex&) { return *this; }
  };

  int64_t num_classes_;
  at::Tensor cells_;  // num_classes^2 counts, then one for ignored rows
  mutable OwnMutex mutex_;
};

/// Scores of one class against all others. A score is 0 where it would divide by zero (scikit-learn: zero_division=0).
struct ClassScore {
  /// Rows of this class.
  int64_t rows = 0;
  /// Share of the rows predicted as this class that belong to it.
  double precision = 0;
  /// Share of the rows of this class that were predicted as it: the accuracy of the class.
  double recall = 0;
  double f1 = 0;
};

/// Scores of a confusion matrix, as fractions of 1.
struct ClassificationScores {
  int64_t rows = 0;
  /// Overall accuracy: share of correct rows. scikit-learn's accuracy_score.
  double oa = 0;
  /// Average accuracy: mean recall of the classes that have rows. scikit-learn's balanced_accuracy_score.
  double aa = 0;
  /// Cohen's kappa: agreement corrected for chance (Cohen 1960). scikit-learn's cohen_kappa_score; as there, NaN if all
  /// rows belong to one class and are predicted as it.
  double kappa = 0;
  /// F1 averaged over the classes: weighted by their rows, and unweighted over the classes with rows or predictions.
  /// scikit-learn's f1_score with average="weighted" and "macro".
  double weighted_f1 = 0;
  double macro_f1 = 0;
  std::vector<ClassScore> classes = {};
};

/// Computes the scores of `counts`, (C, C) int64 on the CPU with one row per true class. NaN if there are no rows.
ClassificationScores classification_scores(const at::Tensor& counts);

}  // namespace trainkit
