#pragma once
// Captures and replays steps as CUDA graphs. StepGraphs decides when.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/graph/step_graphs.h"
#include "trainkit/train/step_options.h"

namespace trainkit::detail {

class Agreement;
class LossWeights;
class MemoryRecovery;
class MetricSums;
class StepBatches;
class WeightUpdate;

/// The eager step of the kept batches, which a capture runs without its device work.
class CapturableStep {
 public:
  virtual ~CapturableStep() = default;
  /// Takes the snapshot from which a step can be run again; takes only the buffers while capturing.
  virtual void begin() = 0;
  /// Runs forward, backward and update of all kept batches; calls begin() first if none has begun.
  virtual void compute() = 0;
  /// Restores the snapshot and drops gradients and metrics, so that no batch has begun.
  virtual void undo() = 0;
};

// Note [Capture of a step]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// capture() turns the pending step into a graph:
// 1. begin() takes the snapshot that undo() may restore. It allocates memory, possibly by dropping all graphs.
// 2. take_inputs() copies the batches into tensors that the graph owns. Replays copy later batches into the same
//    memory.
// 3. state() remembers everything outside the step that the graph depends on: addresses of weights, buffers and
//    gradients, versions of optimizer and scaler, length of the schedule's table. Before each replay it is compared; a
//    difference drops the graphs.
// 4. The allocator's cache is emptied, because the graph needs about as much memory as the eager steps, in its own
//    pool.
// 5. record() runs compute() under capture. is_capturing() makes errors propagate instead of being retried, and
//    record() compares the operations with the last eager step's.
// 6. ScalarPack reserves the memory of the results, so the replay cannot fail halfway.
// Capturing executes no device work, but it runs the host's side of the step (counters of optimizer and schedule,
// votes). The following replay(first = true) therefore executes only the device work. If any of the steps throws,
// undo() resets the host's side: snapshot, gradients, metrics. The step then runs eagerly. Graphs are not tried again
// in this process.

/// What a step reads and writes besides the model.
struct StepParts {
  MemoryRecovery& memory;
  StepBatches& batches;
  LossWeights& weights;
  MetricSums& sums;
  WeightUpdate& update;
};

/// Owned by one TrainStep and used by its thread.
class StepCapture {
 public:
  /// Prepares captures if `options` ask for them and the devices can. Throws c10::ValueError if they must be possible
  /// (CudaGraph::kOn) and are not.
  StepCapture(ReplicaStrategy& devices, const TrainStepOptions& options, const StepParts& parts);
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  /// Null if no step can be captured; then reason() says why.
  StepGraphs* graphs() const { return graphs_.get(); }
  /// Returns whether steps are captured or may still be.
  bool is_active() const { return graphs_ && graphs_->active(); }
  bool is_capturing() const { return is_capturing_; }
  const std::string& reason() const { return graphs_ ? graphs_->reason() : obstacle_; }
  /// Parameters and buffers of all replicas while is_active(), else null.
  const std::vector<at::Tensor>* state_of_model() const { return is_active() ? &model_state_ : nullptr; }

  /// Precedes a step: after captures have ended, steps return to the current streams.
  void begin_step();
  /// Drops graphs of a model whose groups or trained parameters have changed.
  void forget();
  /// Runs step `number` in one of four ways: eagerly, on the streams of captures, traced, or as a graph. Precondition:
  /// is_active().
  void run(CapturableStep& step, Agreement& agreement, int64_t number);

 private:
  std::string obstacle_of(const TrainStepOptions& options) const;
  std::string obstacle_of_batches() const;
  StepKey key() const;
  std::vector<int64_t> state() const;
  void run_eagerly(CapturableStep& step);
  void run_beside(CapturableStep& step);
  void trace(CapturableStep& step);
  bool capture(CapturableStep& step, Agreement& agreement);
  void set_capturing(bool capturing);
  void take_inputs(StepGraph& graph);
  void record(CapturableStep& step, const Agreement& agreement, StepGraph& graph);
  void undo(CapturableStep& step, Agreement& agreement, std::string reason);
  void replay(Agreement& agreement, int64_t number, bool first);

  ReplicaStrategy& devices_;
  StepParts parts_;
  bool has_others_;       // several replicas or ranks
  std::string obstacle_;  // reason if graphs_ is null
  std::unique_ptr<StepGraphs> graphs_;
  std::vector<at::Tensor> model_state_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  bool runs_beside_ = false;  // steps run on the streams of captures
  bool is_capturing_ = false;
};

}  // namespace trainkit::detail
