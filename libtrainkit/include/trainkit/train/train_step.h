#pragma once
/// Runs optimizer steps: forward, backward, unscale, clip, update, learning-rate schedule.

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

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/loss.h"

namespace trainkit {

class StepConsensus;
struct StepVote;
struct StepVerdict;

namespace detail {
class DeviceVotes;
class GraphRanks;
class GraphReplicas;
class StepGradients;
class StepGraphs;
class StepSnapshot;
class ParameterShards;
class StepsInFlight;
class WeightAverage;
struct StepGraph;
}  // namespace detail

/// Data type of the computation. Weights, gradients and optimizer state are always float32.
enum class Precision {
  kFp32,
  kBf16,  ///< autocast to bfloat16
  kFp16   ///< autocast to float16, with a GradScaler
};

/// Whether a step is captured as one CUDA graph: its device work is recorded once and then launched by a single call.
///
/// With kAuto and kOn the caller guarantees that loss function and model read no host values that change between steps.
/// A captured step calls neither of them: numbers that they computed on the host (an annealed loss weight, a counter)
/// keep the values of the capture.
enum class CudaGraph {
  kAuto,  ///< Captures where possible, on CUDA devices. Otherwise graph_reason() says why not.
  kOn,    ///< As kAuto, but an error if it is known from the start that steps cannot be captured.
  kOff    ///< Runs every step eagerly: correct for every loss function, and the default.
};

struct TrainStepOptions {
  Precision precision = Precision::kFp32;
  /// Micro-batches per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Maximum 2-norm of the gradients over all parameters; larger ones are clipped to it. 0 disables clipping.
  double grad_clip = 0;
  /// True frees the gradients after each step; false keeps their memory and zeroes it. Freeing is faster for small
  /// models, since autograd then hands over its buffers instead of adding to zeros. Keeping is faster for large
  /// embedding tables.
  bool zero_grad_set_to_none = true;
  /// Skip a step whose gradients are not finite, in every precision. The device decides. kFp16 skips such steps anyway.
  /// Costs one pass over the gradients, or nothing if they are clipped. Also restores the buffers (BatchNorm's).
  bool skip_nonfinite = false;
  GradScalerOptions scaler = {};
  /// Decay of an exponential moving average of the weights, in [0, 1); 0 disables it. After each step that was not
  /// skipped: average += (1 - ema_decay) * (weight - average). It starts from the weights at construction and takes as
  /// much memory as the trained weights, on each device.
  double ema_decay = 0;
  CudaGraph cuda_graph = CudaGraph::kOff;
  /// Called when a step runs out of memory with one row at a time. Frees memory that can be recomputed (the cache of a
  /// frozen encoder) and returns whether any was freed.
  std::function<bool()> release_memory = nullptr;
};

/// Scalars of one step, of the weights before its update: on the device, detached. Reading one waits for the device.
struct StepMetrics {
  /// Mean over the rows of this process, by weight; see TrainStep::average_over_ranks. A metric's mean is that of the
  /// micro-batches that returned it.
  at::Tensor loss;
  std::vector<std::pair<std::string, at::Tensor>> metrics;
  /// 2-norm of the gradients before clipping; undefined unless grad_clip > 0.
  at::Tensor grad_norm;
  /// Number of consecutive steps up to this one that were skipped because of non-finite gradients; 0 if this step was
  /// not. float32; undefined if no step can be skipped, or if nothing counts in this one.
  at::Tensor skipped_in_a_row;
  /// With skip_nonfinite on the CPU: origin of the first non-finite value, if this step has one. Known immediately.
  std::string first_nonfinite = {};
  /// Sum of the micro-batches' weights (LossOutput::weight) on this rank and on all ranks. On the host.
  double weight = 0;
  double world_weight = 0;
  std::vector<double> metric_weights = {};  ///< the same on this rank, of `metrics`; empty after average_over_ranks
  std::vector<int64_t> row_indices = {};    ///< of the first rows on this rank in the dataset, eight at most
  int64_t rows = 0;                         ///< number of rows on this rank
  /// Defined if several ranks run CUDA graphs: the weight on all ranks, float64. world_weight is then that of an
  /// earlier step.
  at::Tensor world_weight_on_device = {};
};

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
/// (Optimizer::counts_on_device, which TrainStep enables). A graph holds the memory of its step exclusively; when an
/// eager step runs out of memory, the graphs are dropped first.
///
/// Graphs of several ranks. Captures begin in the same step on all ranks. From then on their hosts do not wait for one
/// another: the status all-reduce (stop, save and failure flags of the ranks) runs on the devices, after the gradients,
/// and is read two steps later. agreed_stop() and agreed_save() are then two steps late, and the failure of a rank is
/// thrown by the second accumulate() after it, or by confirm(); the devices have skipped the steps in between. A step
/// that a rank runs eagerly because its batch has another shape reduces its gradients after backward; if it runs out of
/// memory only this rank splits it. Not with SyncBatchNorm layers that synchronise, nor with find_unused_parameters.
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
  ~TrainStep();

  /// Runs forward and backward of one micro-batch; its gradient counts by its share of the step's weight. Keeps the
  /// batch until finish(): the last one of a step (or the only one) by reference to its tensors, others as copies.
  /// `loss` must live until finish(), or is moved from.
  void accumulate(const Batch& batch, const LossFunction& loss);
  void accumulate(const Batch& batch, LossFunction&& loss);

  /// Clips the accumulated gradients, updates the weights and advances the schedule. Uses grad_accum_steps
  /// micro-batches, or fewer at the end of the data; every rank must have accumulated the same number. Throws
  /// c10::Error if there are none.
  StepMetrics finish();

  /// Runs a whole step from one batch: accumulate, then finish.
  StepMetrics operator()(const Batch& batch, const LossFunction& loss) {
    accumulate(batch, loss);
    return finish();
  }
  StepMetrics operator()(const Batch& batch, LossFunction&& loss) {
    accumulate(batch, std::move(loss));
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
  /// The caller's optimizer, then the mirrors of the other copies of the weights.
  const std::vector<Optimizer*>& optimizers() const { return optimizers_; }
  /// Exchanges the weights of all replicas with their averages, in place: for an evaluation, or to save the averages as
  /// the model's weights. Call it again before the next step. Does nothing without ema_decay; does not synchronise.
  /// With sharding every rank calls it.
  void swap_averages();

  /// Sets the number of steps done so far, which errors name and on which ranks must agree. finish() increments it.
  void set_step(int64_t step);
  /// Weight that scales the losses with several replicas: the mean weight of a replica's batch, agreed on in the first
  /// step of a run; 0 before that. It affects only the last bits of the result. Save it in a checkpoint to reproduce
  /// them.
  double weight_unit() const { return weight_unit_; }
  void set_weight_unit(double unit) { weight_unit_ = unit; }
  /// Number of micro-batches that each batch is split into: 1, doubled whenever a step runs out of memory. Save it in a
  /// checkpoint, so that a resumed run is bitwise identical. Throws c10::ValueError below 1.
  int64_t split() const { return split_; }
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
  int64_t accumulated() const { return accumulated_; }
  GradScaler& scaler() { return scaler_; }
  const GradScaler& scaler() const { return scaler_; }
  const TrainStepOptions& options() const { return options_; }

 private:
  struct ReplicaResult;
  struct KeptBatch;
  struct DeferredFailure;
  struct SharedNames;
  void create_mirrors();
  void create_shard_mirrors();
  void follow_model();
  void add_groups();
  void copy_optimizer_state();
  void begin_step();
  KeptBatch& keep(const Batch& batch);
  void accept(const Batch& batch, const LossFunction* borrowed, LossFunction own);
  void run_pending_batches();
  void compute();
  void empty_device_cache();
  bool run_batch(const KeptBatch& kept, bool last);
  bool run_part(const Batch& batch, const LossFunction& loss, bool last);
  bool end_failed_attempt(const std::string& reason, bool again, bool reduced);
  bool end_deferred_attempt();
  bool reduces_every_run() const;
  bool can_retry_step(const Batch& batch);
  void retry_step();
  bool settle();
  void update();
  void skip_update();
  void release_gradients();
  std::vector<at::Tensor> update_optimizers();
  std::vector<at::Tensor> update_unless_nonfinite();
  void count_skips(const at::Tensor& found_inf);
  void drop_failed_update();
  void note_rows();
  void with_memory(c10::function_ref<void()> stage);
  Batch shard_of(const Batch& batch, int64_t replica);
  ReplicaResult run_replica(int64_t replica, const Batch& shard, const LossFunction& loss);
  LossOutput forward(int64_t replica, const Batch& shard, const LossFunction& loss);
  double agree_on_unit(int64_t replica, double weight);
  void add_metrics(const LossOutput& output, double weight, double share, StepMetrics& sums) const;
  void correct_metrics();
  /// Sends *vote_ and clears it. receive_verdict() waits for the combined votes.
  void send_vote(double weight, const std::string& reason = "");
  void receive_verdict();
  bool fail(const std::string& reason, bool again, bool reduced);
  void tell_others(const std::string& reason, bool again, bool reduced);
  void set_empty_metrics();
  void share_names(ProcessGroup& group, const StepMetrics& metrics);
  std::pair<at::Tensor, at::Tensor> means_of_ranks(ProcessGroup& group, const StepMetrics& metrics);
  void repeat_requests();
  void abandon(bool for_good);
  void forget_batches();
  // Capture and replay of CUDA graphs, train_step_graph.cpp.
  void prepare_graphs();
  std::string graphs_obstacle() const;
  std::string step_obstacle() const;
  void finish_with_graphs();
  void compute_beside();
  void compute_eagerly();
  void trace_step();
  bool capture_step();
  void take_inputs(detail::StepGraph& graph);
  void record_step(detail::StepGraph& graph);
  void undo_capture(std::string reason);
  void replay_step(bool first);
  std::vector<int64_t> step_key() const;
  std::vector<int64_t> step_state() const;
  // Ranks that agree on their devices, train_step_ranks.cpp.
  void wait_for_earlier_step();
  void await(size_t place) const;
  void read_votes(size_t place);
  void follow(const StepVerdict& verdict);
  void add_graphs_to_vote();
  void cast_vote(double weight);
  void end_verdict();
  void take_part_as_failed(const std::string& reason, bool reduced);
  bool meets_every_run() const;
  bool reduces_later() const;
  DeviceReplicator& devices_;
  Optimizer& optimizer_;
  LRScheduler* scheduler_;
  TrainStepOptions options_;
  GradScaler scaler_;
  std::mutex scaler_mutex_;                    // replicas scale their losses concurrently
  detail::ParameterShards* shards_ = nullptr;  // of the first copy of the weights; null without sharding
  std::vector<std::unique_ptr<Optimizer>> mirrors_;
  size_t groups_ = 0;                            // of the optimizer, that mirrors and averages have
  int64_t trained_version_ = 0;                  // of devices_
  std::vector<Optimizer*> optimizers_;           // the caller's, then the mirrors; with sharding it owns these
  std::vector<detail::WeightAverage> averages_;  // one for each of them; empty without ema_decay
  std::vector<ReplicaResult> results_;           // of the current micro-batch; a member to reuse its memory
  std::unique_ptr<StepConsensus> agreement_;
  std::atomic<int64_t> copy_time_{0}, agree_time_{0}, update_time_{0};  // nanoseconds
  StepMetrics metrics_;
  std::optional<std::vector<std::string>> metric_names_;  // known after the first step with rows
  std::unique_ptr<SharedNames> shared_names_;             // of the metrics of all ranks
  std::unique_ptr<detail::StepGradients> gradients_;
  std::string nonfinite_;                            // origin of this step's first loss that is not finite
  detail::GraphReplicas* graph_replicas_ = nullptr;  // the replicator, if it has several replicas or ranks
  detail::GraphRanks* graph_ranks_ = nullptr;        // the same, if it has ranks
  std::unique_ptr<detail::DeviceVotes> votes_;       // then
  bool runs_beside_ = false;                         // steps run on the stream of captures
  bool votes_on_device_ = false;                     // see Note [Graphs of several ranks]
  bool holds_graphs_ = false;                        // some rank may; equal on all ranks
  int64_t split_before_ = 1;                         // split_ at the start of the step
  std::unique_ptr<StepVerdict> late_;                // combines the verdicts read since the last finish()
  std::unique_ptr<StepVote> vote_;
  std::unique_ptr<StepVerdict> verdict_;
  int64_t step_ = 0;
  std::unique_ptr<detail::StepSnapshot> snapshot_;
  std::unique_ptr<detail::StepGraphs> graphs_;  // null if no step can be captured
  std::string device_names_;
  std::string no_graphs_;                 // reason if graphs_ is null
  std::vector<at::Tensor> module_state_;  // parameters, buffers
  std::vector<std::shared_ptr<torch::nn::Module>> parts_of_model_;
  bool capturing_ = false;
  bool collective_backward_ = false;           // SyncBatchNorm: the replicas wait for each other in backward
  std::unique_ptr<DeferredFailure> deferred_;  // of a micro-batch in this attempt, see Note [Votes of a step]
  std::vector<KeptBatch> kept_;
  std::unique_ptr<detail::StepsInFlight> in_flight_;
  std::vector<at::Device> device_list_;         // of the replicas
  at::Tensor skipped_in_a_row_, none_skipped_;  // float32, on the device
  int64_t split_ = 1;
  bool released_ = false;     // the last failure freed memory: graphs or release_memory
  double unit_at_start_ = 0;  // weight_unit_ at the start of the step
  int64_t accumulated_ = 0;   // batches passed to accumulate()
  int64_t begun_ = 0;         // of those, started
  int64_t parts_ = 0;         // micro-batches run
  bool reduced_ = false;      // the last micro-batch reduced the gradients
  double weight_ = 0;         // of the micro-batches accumulated so far
  double weight_unit_ = 0;
  double expected_weight_ = 0;  // of the whole step, if all micro-batches have the first one's weight
};

}  // namespace trainkit
