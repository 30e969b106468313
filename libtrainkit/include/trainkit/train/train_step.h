#pragma once
/// One optimizer step: forward, backward, unscale, clip, update, schedule.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/distributed/step_consensus.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/step_times.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"

namespace trainkit {
namespace detail {
class StepGraphs;
class StepSnapshot;
class StepsInFlight;
struct StepGraph;
}  // namespace detail

/// The type of the arithmetic. Weights, gradients and optimizer state are float32 in every case.
enum class Precision {
  kFp32,
  kBf16,  ///< autocast to bfloat16
  kFp16   ///< autocast to float16, with a GradScaler
};

/// Whether a step is one CUDA graph: all that it asks of the device is recorded once and then started by a single call.
/// kAuto and kOn state that loss function and model read no host values that change: a captured step calls neither, and
/// the numbers that they computed on the host (a loss weight that is annealed, a counter) stay those of the capture.
enum class CudaGraph {
  kAuto,  ///< Where it can be: on one CUDA device. Elsewhere steps run eagerly, and graph_reason() says why.
  kOn,    ///< The same, and an error where it is known from the beginning that it cannot be.
  kOff    ///< Every step is eager: right for every loss function, and the default.
};

struct TrainStepOptions {
  Precision precision = Precision::kFp32;
  /// Micro-batches per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Gradients longer than this (2-norm over all parameters) are shortened to it; 0 does not clip.
  double grad_clip = 0;
  /// Free gradients after each step, or keep their memory and zero it. Freed is faster for small models, since autograd
  /// then hands its buffers over instead of adding to zeros; kept is faster for large embedding tables.
  bool zero_grad_set_to_none = true;
  /// Skip a step whose gradients are not finite, in every precision; decided on the device. kFp16 skips them anyway.
  /// Costs one pass over the gradients, or nothing if they are clipped. With it the buffers (BatchNorm's) are put back
  /// too.
  bool skip_nonfinite = false;
  GradScalerOptions scaler = {};
  CudaGraph cuda_graph = CudaGraph::kOff;
  /// Called when a step is out of memory with one row at a time: gives back what can be computed anew (a cache of a
  /// frozen encoder) and says whether that was anything.
  std::function<bool()> release_memory = nullptr;
};

/// Scalars of one step, on the device, detached; reading one waits for the device.
struct StepMetrics {
  /// Mean over what this process trained on in the step, by weight; see TrainStep::average_over_ranks.
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> metrics;
  /// 2-norm of the gradients before clipping; undefined unless grad_clip > 0.
  at::Tensor grad_norm;
  /// Steps in a row that were skipped, this one among them; 0 if this one was not. float32, undefined if none can be.
  at::Tensor skipped_in_a_row;
  /// Where the first value that is not finite came from, if this step was skipped: known at once on the CPU alone.
  std::string first_nonfinite = {};
  /// Sum of the micro-batches' weights (LossOutput::weight), here and on all ranks; known to the host.
  double weight = 0;
  double world_weight = 0;
};

/// Runs optimizer steps. Nothing in it reads the device, so the host runs ahead, by one step: the first accumulate() of
/// a step waits until the devices are done with the step before the last, so that what queued steps hold in device
/// memory does not grow. A step whose gradients are not finite (kFp16, or skip_nonfinite) is skipped on the device and
/// moves neither the weights nor the schedule.
///
///   TrainStep step(*devices, optimizer, {.grad_clip = 1.0});
///   while (auto batch = loader->next().value()) { auto metrics = step(*batch, loss); }
///
/// With several replicas in this process each gets its share of a batch's rows, in order, and the loss function is
/// called from a thread per replica. With several ranks each gives its own batch, and all make the same calls; finish()
/// has them agree (distributed/step_consensus.h), so that they skip, stop and fail after the same step. Either way the
/// gradient is that of one process on all rows: losses count by their weights, wherever they were computed.
///
/// Out of memory in forward or backward: the step is taken again from where it began, each batch in twice as many
/// micro-batches. The rows, the global batch and what follows are those of the same step taken so from the beginning,
/// bit for bit: gradients are dropped, buffers (BatchNorm's) and LibTorch's default generators put back, and all ranks
/// do alike. split() stays as it is then. What depends on the micro-batch (BatchNorm in training, negatives taken from
/// the batch) is not that of the larger one. With one row at a time release_memory is asked, and the error passes
/// through if that gives nothing. The update has what it needs before it changes anything, and is tried again. Of
/// ranks three cases cannot be mended: a model with exchanges of its own (SyncBatchNorm), gradients that were on their
/// way already, and the Reducer's arrangement of buckets.
///
/// With TrainStepOptions::cuda_graph the whole step is captured as a CUDA graph on one CUDA device, after three eager
/// ones with batches of the same shapes and the same loss function; each of a few shapes has its graph. Then
///   - accumulate() only keeps its batch and finish() does the rest, exceptions included: no gradients in between;
///   - the loss function is not called. What it computes on the host stays what it was when the step was captured.
/// So a step is captured only if two eager ones asked LibTorch for the same operations with the same numbers, read
/// nothing from the device, took nothing from the host's memory and drew no random numbers there; and every 1000th step
/// runs eagerly and is compared with what was captured. A step that is not so runs eagerly from then on, and
/// graph_reason() says why. A host value that changes between two such comparisons is used late: no graphs for a loss
/// function or a model that has one, or a tensor on the device in its place. The loss function must be a LossFunction
/// that the caller keeps, not a temporary; one that is made or assigned anew is another, also at the same address.
/// Results are those of eager steps, bit for bit, with an optimizer that counts on the device
/// (Optimizer::counts_on_device, which TrainStep sees to). A graph keeps the memory of its step to itself; when an
/// eager step has none left, graphs are given up first.
///
/// Not thread-safe. Exceptions of the loss function and of LibTorch pass through; the gradients accumulated so far are
/// dropped then, and weights and optimizer state are untouched, on every rank. Where another rank failed or is lost,
/// absl::BadStatusOrAccess is thrown with an Error of exit code 8 that names it.
class TrainStep {
 public:
  /// Keeps references to all three. An optimizer without parameters gets default_param_groups of the model. Each
  /// further copy of the weights gets an optimizer like it, which does what it does. Throws c10::ValueError for options
  /// out of range and for kFp16 on the CPU, which has no fast float16 kernels.
  TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options = {},
            LRScheduler* scheduler = nullptr);
  ~TrainStep();

  /// Forward and backward of one micro-batch; its gradient counts by its share of the step's weight. Until finish() the
  /// batch is kept: the last one of a step (and the only one) as it is, others as copies. `loss` must live until
  /// finish(), or is moved from.
  void accumulate(const Batch& batch, const LossFunction& loss);
  void accumulate(const Batch& batch, LossFunction&& loss);

  /// Clips, updates and moves the schedule, from what was accumulated: grad_accum_steps micro-batches, or fewer at the
  /// end of the data, as many on each rank. Throws c10::Error if nothing was accumulated.
  StepMetrics finish();

  /// A whole step from one batch: accumulate, then finish.
  StepMetrics operator()(const Batch& batch, const LossFunction& loss) {
    accumulate(batch, loss);
    return finish();
  }
  StepMetrics operator()(const Batch& batch, LossFunction&& loss) {
    accumulate(batch, std::move(loss));
    return finish();
  }

  /// The means of a step over all ranks, by their weights. Every rank calls it for the same steps (those that are
  /// logged): one more small all-reduce. Changes nothing without other ranks.
  void average_over_ranks(StepMetrics& metrics);

  /// What this rank says about the next step: set `stop` and `save` before its last accumulate(), which may send them
  /// on their way together with the gradients. What is set later counts for the step after.
  StepVote& vote() { return vote_; }
  /// What all said in the last one. Without other ranks it is this rank's vote.
  const StepVerdict& verdict() const { return verdict_; }

  /// After weights and optimizer were loaded (into replica 0, of every rank): gives all copies the same.
  void synchronize();

  /// The step that errors name and on which ranks must agree: steps done so far. Counts on by itself.
  void set_step(int64_t step) { step_ = step; }
  /// With several replicas: the weight of a batch of one replica that losses are scaled by, agreed on in the
  /// first step of a run. The result depends on it in the last bits alone; keep it in a checkpoint to keep those. 0:
  /// not yet.
  double weight_unit() const { return weight_unit_; }
  void set_weight_unit(double unit) { weight_unit_ = unit; }

  /// Micro-batches that each batch is split into: 1 until a step is out of memory, then doubled. Keep it in a
  /// checkpoint, so that a resumed run has the same bits. Throws c10::ValueError below 1.
  int64_t split() const { return split_; }
  void set_split(int64_t split);

  /// Why the last step ran eagerly, or is captured no more; empty if it was a captured one.
  const std::string& graph_reason() const;
  /// Whether steps may still be captured, or are.
  bool uses_graphs() const;
  /// Steps done by graphs, and graphs captured.
  int64_t graph_steps() const;
  int64_t graph_captures() const;
  /// For want of memory elsewhere: gives graphs up for good, with the memory that they hold. False if there are none,
  /// and nothing is done.
  bool drop_graphs(const std::string& reason);

  /// Where the time of all steps so far went. Any thread.
  StepTimes times() const;

  /// Batches accumulated since the last finish().
  int64_t accumulated() const { return accumulated_; }
  GradScaler& scaler() { return scaler_; }
  const GradScaler& scaler() const { return scaler_; }
  const TrainStepOptions& options() const { return options_; }

 private:
  struct ReplicaResult;
  /// A batch of the present step, with which it may be taken again.
  struct KeptBatch {
    Batch batch;
    const LossFunction* lent_loss = nullptr;  // the caller's, or
    LossFunction own_loss = nullptr;
    std::array<std::vector<at::Tensor>, 2> memory = {};  // kept from step to step; on the host, of two steps in turn

    const LossFunction& loss() const { return lent_loss ? *lent_loss : own_loss; }
  };

  void create_mirrors();
  void begin_step();
  KeptBatch& keep(const Batch& batch);
  void accept(const Batch& batch, const LossFunction* lent, LossFunction own);
  void run_waiting();
  void compute();
  void empty_device_cache();
  bool run_batch(const KeptBatch& kept, bool last);
  bool run_part(const Batch& batch, const LossFunction& loss, bool last);
  bool can_take_again(const Batch& batch);
  void retry_step();
  bool settle();
  void update();
  void update_unless_nonfinite(Optimizer& optimizer);
  void count_skips(const at::Tensor& found_inf);
  std::string find_nonfinite();
  void with_memory(c10::function_ref<void()> stage);
  Batch shard_of(const Batch& batch, int64_t replica);
  ReplicaResult run_replica(int64_t replica, const Batch& shard, const LossFunction& loss);
  LossOutput forward(int64_t replica, const Batch& shard, const LossFunction& loss);
  double agree_on_unit(int64_t replica, double weight);
  void add_metrics(const LossOutput& output, double share, StepMetrics& sums) const;
  /// Sends vote_, which is empty then: what all say is known after receive_verdict().
  void send_vote(double weight, const std::string& reason = "");
  void receive_verdict();
  void fail(const std::string& reason, bool again, bool reduced);
  void take_nothing();
  void vote_again();
  void abandon(bool for_good);
  void forget_batches();

  // The graph's part, train_step_graph.cpp.
  void prepare_graphs();
  std::string why_never() const;
  std::string why_not_now() const;
  void finish_with_graphs();
  void trace_step();
  bool capture_step();
  void take_inputs(detail::StepGraph& graph);
  void record_step(detail::StepGraph& graph);
  void undo_capture(std::string reason);
  void replay_step(bool first);
  std::vector<int64_t> step_key() const;
  std::vector<int64_t> step_state() const;

  DeviceReplicator& devices_;
  Optimizer& optimizer_;
  LRScheduler* scheduler_;
  TrainStepOptions options_;
  GradScaler scaler_;
  std::mutex scaler_mutex_;  // replicas scale their losses at once
  std::vector<std::unique_ptr<Optimizer>> mirrors_;
  std::vector<Optimizer*> optimizers_;  // the caller's, and the mirrors
  std::vector<ReplicaResult> results_;  // of the present micro-batch; kept for its memory
  std::optional<StepConsensus> agreement_;

  std::atomic<int64_t> copy_time_{0}, agree_time_{0}, update_time_{0};  // nanoseconds

  StepMetrics metrics_;
  std::optional<std::vector<std::string>> metric_names_;  // known after the first step
  StepVote vote_;
  StepVerdict verdict_;
  int64_t step_ = 0;
  std::unique_ptr<detail::StepSnapshot> snapshot_;
  std::unique_ptr<detail::StepGraphs> graphs_;  // null where no step can be captured
  std::string device_names_;
  std::string no_graphs_;                 // why not
  std::vector<at::Tensor> module_state_;  // parameters, buffers
  bool capturing_ = false;
  std::vector<KeptBatch> kept_;
  std::unique_ptr<detail::StepsInFlight> in_flight_;
  std::vector<at::Device> device_list_;         // of the replicas
  at::Tensor skipped_in_a_row_, none_skipped_;  // float32, on the device
  int64_t split_ = 1;
  bool released_ = false;     // the last failure was met by release_memory
  double unit_at_start_ = 0;  // weight_unit_, as the step began
  int64_t accumulated_ = 0;   // batches given
  int64_t begun_ = 0;         // of those, run or being run
  int64_t parts_ = 0;         // micro-batches run
  bool reduced_ = false;      // the last micro-batch reduced the gradients
  double weight_ = 0;         // of the micro-batches accumulated so far
  double weight_unit_ = 0;
  double expected_weight_ = 0;  // of the whole step if all micro-batches weigh as much as the first
};

}  // namespace trainkit
