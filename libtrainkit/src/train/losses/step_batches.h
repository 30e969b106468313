#pragma once
// Keeps the batches of a step, and how they are split.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit::detail {

/// A batch of the current step, kept for retries.
struct KeptBatch {
  Batch batch;
  const LossFunction* borrowed_loss = nullptr;  // the caller's, or
  LossFunction own_loss = nullptr;
  const std::vector<Shared>* shared = nullptr;         // by replica, of the step's players; outlives the step
  std::array<std::vector<at::Tensor>, 2> memory = {};  // reused between steps; on the host, double-buffered

  const LossFunction& loss() const { return borrowed_loss ? *borrowed_loss : own_loss; }
};

/// Batches are added by keep() and run in the same order: begin_next() returns each of them once, and after restart()
/// again. Used by the thread of the step.
class StepBatches {
 public:
  /// @param most number of batches per step
  explicit StepBatches(int64_t most) : most_(most) {}

  /// Keeps a batch until clear(). The last one of a step (or the only one) is kept by reference to its tensors; earlier
  /// ones are copied, because the loader reuses their memory. Copies are page-locked if the batch is, since devices
  /// copy from them asynchronously. Nothing changes if memory runs out.
  /// @param place 0 or 1: copies on the host that devices no longer read, see StepsInFlight
  void keep(const Batch& batch, size_t place);
  /// Keeps a batch whose tensors stay until clear(), by reference.
  void keep_reference(const Batch& batch);
  /// Sets the loss function and shared tensors of the batch that keep() kept, and counts the batch.
  void add(const LossFunction* borrowed, LossFunction own, const std::vector<Shared>* shared = nullptr);
  /// Whether the batches can be split: not if a shared tensor has a graph, is not by row, or is one of several
  /// replicas.
  bool can_split() const;

  int64_t count() const { return count_; }
  /// Whether no step has kept a batch yet.
  bool is_new() const { return kept_.empty(); }
  KeptBatch& at(int64_t i) { return kept_[static_cast<size_t>(i)]; }
  const KeptBatch& at(int64_t i) const { return kept_[static_cast<size_t>(i)]; }

  /// Number of batches that begin_next() has returned.
  int64_t begun() const { return begun_; }
  /// Index of the next batch to run. Precondition: begun() < count().
  int64_t begin_next() { return begun_++; }
  /// Runs none of them again until begin_next(): for a step that a failed capture has begun.
  void restart() { begun_ = 0; }
  /// Returns whether batch `i` is the last one of a full step.
  bool is_last(int64_t i) const { return i + 1 == most_; }

  /// Number of micro-batches that each batch is split into: 1, doubled whenever a step runs out of memory. 1 in a step
  /// whose batches cannot be split.
  int64_t split() const { return can_split() ? split_ : 1; }
  /// Throws c10::ValueError below 1.
  void set_split(int64_t split);
  void split_more() { split_ *= 2; }
  /// Notes the split before a step, for restore_split().
  void note_split() { split_before_ = split_; }
  void restore_split() { split_ = split_before_; }
  /// A micro-batch.
  struct Part {
    Batch batch;
    bool is_last = false;  // of the last batch of a full step
    const std::vector<Shared>* shared = nullptr;
    std::shared_ptr<const std::vector<Shared>> own_shared = nullptr;  // if the batch is split
  };
  /// Returns the parts of batch `i`, in the order of their rows. Parts may be empty; those before the last one are left
  /// out unless `keep_empty`. Batches that cannot be split are whole.
  std::vector<Part> parts(int64_t i, bool keep_empty) const;

  /// Sets rows and row_indices of a step's metrics.
  void note_rows(StepMetrics& metrics) const;
  /// Releases the batches and loss functions.
  void clear();

 private:
  KeptBatch& next();

  int64_t most_;
  std::vector<KeptBatch> kept_;
  int64_t count_ = 0;  // of the batches of this step
  int64_t begun_ = 0;
  int64_t split_ = 1;
  int64_t split_before_ = 1;
};

}  // namespace trainkit::detail
