#pragma once
/// Runs optimizer steps: forward, backward, unscale, clip, update, learning-rate schedule.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/player.h"
#include "trainkit/train/step_metrics.h"
#include "trainkit/train/step_options.h"

namespace trainkit {

/// Runs optimizer steps without reading from the device, so the host runs one step ahead. The first accumulate() of a
/// step waits until the devices have finished the step before the last one; this bounds the device memory of queued
/// steps. A step with non-finite gradients (kFp16, or skip_nonfinite) is skipped on the device and changes neither the
/// weights nor the schedule. So is a step of total weight 0, in which no row or token counts (LossOutput::weight); its
/// loss is 0.
///
///   TrainStep step(*devices, optimizer, {.grad_clip = 1.0});
///   while (auto batch = loader->next().value()) { auto metrics = step(*batch, loss); }
///
/// Replicas and ranks. With several replicas in this process each gets a contiguous share of a batch's rows, and the
/// loss function is called from one thread per replica. With several ranks each rank passes its own batch, and all
/// ranks make the same calls. finish() makes the ranks agree, so they skip, stop and fail after the same step. In both
/// cases the gradient equals that of one process on all rows: losses are weighted by LossOutput::weight.
///
/// Frozen and added parameters. requires_grad and the modes of modules may change between steps, on the first replica:
/// see DeviceReplicator. So may the optimizer: a step gives groups that were added since the last one to the mirrors of
/// the other copies and to the averages, which start from the weights of that moment. A parameter that is frozen is not
/// updated. With sharding both are errors (train.frozen). Captured steps are captured again.
///
/// Out of memory in forward or backward: the step is retried from its start, with each batch split into twice as many
/// micro-batches. Rows and global batch stay the same. The result equals, bit for bit, that of a step which used the
/// smaller micro-batches from the start: gradients are dropped, buffers (BatchNorm's) and LibTorch's default generators
/// are restored, and all ranks do the same. split() keeps the new value. Computations that depend on the micro-batch
/// (BatchNorm in training, in-batch negatives) see the smaller one. With one row at a time release_memory is called,
/// and the error propagates if that frees nothing. The update allocates its memory before it changes anything, and is
/// retried. With several ranks three cases cannot be retried: a model with its own collectives (SyncBatchNorm),
/// gradients that are already being sent, and an allocation failure while the Reducer rebuilds its buckets.
///
/// CUDA graphs. With TrainStepOptions::cuda_graph the whole step is captured as a CUDA graph: on one CUDA device, on
/// all GPUs of this process, or on each rank with its collectives. Three to five eager steps with batches of the same
/// shapes and the same loss function precede the capture. Each of up to six combinations of shapes and loss functions
/// has its own graph. Then
/// - accumulate() only keeps its batch and finish() does all the work, including throwing exceptions; gradients are not
///   available in between;
/// - the loss function is not called. Values that it computes on the host keep the values of the capture.
/// A step is captured only if two eager steps requested the same LibTorch operations with the same numbers. They must
/// neither read from the device, nor copy from host memory, nor draw random numbers on the host. Every 1000th step
/// runs eagerly and is compared with the captured one. If they differ, steps run eagerly from then on and
/// graph_reason() says why. A host value that changes between two such comparisons takes effect late: do not use graphs
/// with such a loss function or model, or replace the value by a tensor on the device. The loss function must be a
/// LossFunction that the caller keeps, not a temporary. A new or reassigned one counts as a different function, even at
/// the same address.
/// Results equal those of eager steps bit for bit, with an optimizer that counts steps on the device
/// (`capturable`, which TrainStep enables). A graph holds the memory of its step exclusively; when an
/// eager step runs out of memory, the graphs are dropped first.
///
/// Graphs of several ranks. Captures begin in the same step on all ranks. From then on their hosts do not wait for one
/// another: the status all-reduce (stop, save and failure flags of the ranks) runs on the devices, after the gradients,
/// and is read two steps later. agreed_stop() and agreed_save() are then two steps late, and the failure of a rank is
/// thrown by the second accumulate() after it, or by confirm(); the devices have skipped the steps in between. A step
/// that a rank runs eagerly because its batch has another shape reduces its gradients after backward; if it runs out of
/// memory only this rank splits it. Not with SyncBatchNorm layers that synchronise, nor with find_unused_parameters.
///
/// Players. With several players a step is a sequence of steps, one for each: skipping, retrying and clipping are its
/// own. If one fails, those before it stay applied. A player that runs out of memory is retried from its own start with
/// smaller micro-batches, unless tensors are shared: they belong to whole batches. The loss scale is one, and is
/// updated after the last player. Steps become CUDA graphs, one per player, on one device and without shared tensors.
/// `loss` of the metrics is the first player's; "<player>.loss", "<player>.grad_norm" and "<player>.<metric>" are among
/// the others.
///
/// Gradients. A step uses those of its own losses alone, for its optimizer's parameters alone, whatever others have
/// left in them. It leaves the gradients of other parameters as they were.
///
/// Not thread-safe. Exceptions of the loss function and of LibTorch propagate; the gradients accumulated so far are
/// dropped, and weights and optimizer state are unchanged on every rank. If another rank failed or is lost, throws
/// absl::BadStatusOrAccess with an Error of exit code 8 that names the rank.
class TrainStep {
 public:
  /// Keeps references to the arguments. An optimizer without parameters gets default_param_groups of the model. With
  /// DeviceReplicatorOptions::sharding it gets the parts of them that this rank, or the first replica, updates: 1-D
  /// tensors that share the weights' memory, with state of their size. Each further copy of the weights gets a mirror
  /// optimizer with the same settings, which starts with the state of `optimizer`, or with its own parts. Throws
  /// c10::ValueError for options out of range and for kFp16 on the CPU, which has no fast float16 kernels; an Error of
  /// exit code 2 for a parameter that is not the model's, since no checkpoint would contain it.
  TrainStep(DeviceReplicator& devices, Optimizer& optimizer, const TrainStepOptions& options = {},
            LRScheduler* scheduler = nullptr);
  /// Steps of several players, see Player. Keeps their optimizers and losses. `schedulers` are theirs, each may be
  /// null; an empty list: makes one for each Player::schedule. `shared` may be null. `options` has what the players do
  /// not: its grad_clip and ema_decay must be 0. Every rank calls it. Throws an Error of exit code 2 for players that
  /// cannot be: without a name, with parameters of another one or of none, with sharding, ...
  TrainStep(DeviceReplicator& devices, const std::vector<Player>& players, SharedFunction shared,
            const TrainStepOptions& options, const std::vector<LRScheduler*>& schedulers = {});
  ~TrainStep();

  /// Runs forward and backward of one micro-batch; its gradient counts by its share of the step's weight. Keeps the
  /// batch until finish(): the last one of a step (or the only one) by reference to its tensors, others as copies.
  /// `loss` must live until finish(), or is moved from.
  void accumulate(const Batch& batch, const LossFunction& loss);
  void accumulate(const Batch& batch, LossFunction&& loss);
  /// The same with several players, which have their losses: keeps the batch, and finish() runs the players.
  void accumulate(const Batch& batch);

  /// Clips the accumulated gradients, updates the weights and advances the schedule. Uses grad_accum_steps
  /// micro-batches, or fewer at the end of the data; every rank must have accumulated the same number. Throws
  /// c10::Error if there are none.
  StepMetrics finish();

  /// Runs a whole step from one batch: accumulate, then finish. Without a loss: of several players.
  template <class... Loss>
  StepMetrics operator()(const Batch& batch, Loss&&... loss) {
    accumulate(batch, std::forward<Loss>(loss)...);
    return finish();
  }

  /// Averages the loss and each metric over the ranks that have it, by weight. Every rank must call it for the same
  /// steps (the logged ones): it costs one more small all-reduce. Does nothing on a single rank. On GPUs a metric that
  /// is new in a later step appears one call late.
  void average_over_ranks(StepMetrics& metrics);

  /// Asks all ranks to stop, or to save a checkpoint, after the next step. `signal` is any number above 0; the ranks
  /// agree on the largest. Call them before the last accumulate() of the step, which may send the request together with
  /// the gradients. A later request counts for the step after.
  void request_stop(int signal);
  void request_save();
  /// Stop signal (0: none) and save request that the ranks agreed on in the last step. On a single rank they are that
  /// rank's requests.
  int agreed_stop() const;
  bool agreed_save() const;

  /// Waits until the steps so far are known to have succeeded on all ranks, and throws the Error of a rank that failed.
  /// Call it on every rank before using the weights (to save or evaluate them). Does nothing unless several ranks run
  /// CUDA graphs.
  void confirm();

  /// Copies weights, averages and optimizer state of replica 0 to all other copies. Call it on every rank after loading
  /// them. With sharding only the weights: each copy has its own part of the rest.
  void synchronize();

  /// Averages of replica 0's weights (TrainStepOptions::ema_decay) by the names of the model's parameters: the live
  /// tensors, not copies. Empty without ema_decay. With sharding: the parts of a copy, as those in its optimizer.
  NamedTensors averages(int64_t copy = 0) const;
  /// The caller's optimizer, or that of a player, then the mirrors of the other copies of the weights.
  const std::vector<Optimizer*>& optimizers(size_t player = 0) const;
  /// Exchanges the weights of all replicas with their averages, in place: for an evaluation, or to save the averages as
  /// the model's weights. Call it again before the next step. Does nothing without ema_decay; does not synchronise.
  /// With sharding every rank calls it.
  void swap_averages();

  /// Sets the number of steps done so far, which errors name and on which ranks must agree. finish() increments it.
  void set_step(int64_t step);
  /// Weight that scales the losses with several replicas: the mean weight of a replica's batch, agreed on in the first
  /// step of a run; 0 before that. It affects only the last bits of the result. Save it in a checkpoint to reproduce
  /// them.
  double weight_unit(size_t player = 0) const;
  void set_weight_unit(double unit, size_t player = 0);
  /// Number of micro-batches that each batch is split into: 1, doubled whenever a step runs out of memory. Save it in a
  /// checkpoint, so that a resumed run is bitwise identical. Throws c10::ValueError below 1.
  int64_t split() const;
  void set_split(int64_t split);

  /// Returns why the last step ran eagerly, or why steps are no longer captured; empty if it was a captured step.
  const std::string& graph_reason() const;
  /// Returns whether steps are captured or may still be.
  bool uses_graphs() const;
  /// Number of steps run by graphs, and number of graphs captured.
  int64_t graph_steps() const;
  int64_t graph_captures() const;
  /// Drops all graphs permanently to free their memory for other uses. Returns false, and does nothing, if there are
  /// none.
  bool drop_graphs(const std::string& reason);
  /// Returns where the time of all steps so far was spent. Any thread may call it.
  StepTimes times() const;
  /// Number of batches accumulated since the last finish().
  int64_t accumulated() const;
  GradScaler& scaler() const;
  const TrainStepOptions& options() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
