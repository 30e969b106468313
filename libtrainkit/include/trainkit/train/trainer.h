#pragma once
/// The training loop: data, devices, steps, evaluation, checkpoints and logs joined.

#include <absl/status/statusor.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "trainkit/core/state_dict.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/logging/monitor.h"
#include "trainkit/memory/caching_allocator_model.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

/// What becomes of a step whose gradients are not finite.
enum class OnNonfinite {
  kFail,     ///< The run ends with exit code 9.
  kSkip,     ///< The step changes nothing, decided on the device.
  kRollback  ///< As kSkip, then weights and optimizer go back to the last checkpoint, and the run on to other rows.
};

struct TrainerOptions {
  /// Limits; 0 is none, and at least one of the first two is needed. A step is an optimizer step.
  int64_t max_epochs = 1;
  int64_t max_steps = 0;
  std::chrono::milliseconds max_time{0};

  Precision precision = Precision::kFp32;
  /// Batches of the loader per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Longest gradient, as a 2-norm over all parameters; 0 does not clip.
  double grad_clip = 0;
  GradScalerOptions scaler = {};
  /// kAuto where neither loss function nor model reads host values that change; see CudaGraph.
  CudaGraph cuda_graph = CudaGraph::kOff;
  /// With kFail, gradients are looked at where they are clipped, and the loss when it is logged. Float16's scaler skips
  /// steps in any case.
  OnNonfinite on_nonfinite = OnNonfinite::kFail;
  /// Skips in a row, or rollbacks to one checkpoint, that end the run with exit code 9.
  int64_t max_nonfinite = 20;
  /// The learning rate over the steps, as a factor of the optimizer's; none keeps it.
  std::shared_ptr<const LRSchedule> schedule = nullptr;
  /// Lowers the learning rate when the monitored metric stands still, on top of the schedule.
  std::optional<PlateauOptions> plateau = std::nullopt;

  /// Intervals in optimizer steps; 0 is never. With save_every > 0 the end of the run saves too.
  int64_t log_every = 10;
  /// What LossOutput::weight counts, in the plural: with "tokens" records of training have "tokens_per_second" beside
  /// "samples_per_second". Empty: only the latter.
  std::string weight_unit = {};
  int64_t eval_every = 0;
  int64_t save_every = 0;
  /// Where checkpoints go, under "checkpoints/"; needed for save_every and resume.
  std::string output_dir = {};
  /// Checkpoints kept; 0 keeps all.
  int64_t keep_last = 3;
  /// Milestones: every so many steps a checkpoint is saved that keep_last does not delete; 0 is never.
  int64_t keep_every = 0;
  /// A save that fails ends the run (exit code 6), or is told and the run goes on with the last good one. Saves are
  /// written by a thread of their own from a copy in host memory, so that a failure is met some steps later.
  bool continue_on_save_error = false;
  /// Go on from a checkpoint: "latest", a run's folder, its "checkpoints/" or one "step-..."; empty starts afresh.
  std::string resume = {};

  /// The metric of the evaluation that picks the best step, moves the plateau and stops early.
  std::string monitor = "loss";
  bool monitor_higher_is_better = false;
  /// Evaluations in a row without an improvement after which the run ends; 0 is never.
  int64_t early_stopping = 0;

  /// How the run is watched; see Monitor. The live table goes to the logger, and the report into the result.
  MonitorOptions monitoring = {};

  /// See TrainStepOptions.
  std::function<bool()> release_memory = nullptr;
  /// The memory of one device in a step, as planned (memory_plan.h): printed with the real one after the second step,
  /// or after the step that is captured as a CUDA graph. The second as a GPU's allocator counts it.
  std::optional<MemoryBytes> predicted_memory = std::nullopt;
  std::optional<DeviceMemory> predicted_device_memory = std::nullopt;
  /// What may help, as lines to print, when a step is out of memory with one row at a time (MemoryPlan::ladder). Called
  /// once, on the training thread.
  std::function<std::string()> explain_out_of_memory = nullptr;

  /// Watch SIGINT, SIGTERM and SIGUSR1 during fit (see SignalWatch).
  bool handle_signals = false;
  /// Kept in each checkpoint, returned by nothing: what the run was configured with, for people.
  StateDict config = {};
};

/// Why a run ended.
enum class ExitReason { kMaxEpochs, kMaxSteps, kMaxTime, kEarlyStopping, kSignal };
const char* to_string(ExitReason reason);

struct TrainerResult {
  ExitReason reason = ExitReason::kMaxEpochs;
  /// The signal that ended the run, if one did.
  int signal = 0;
  /// Optimizer steps and epochs (a fraction within one) since the beginning of the first run.
  int64_t steps = 0;
  double epochs = 0;
  /// Optimizer steps of this run alone (fewer than `steps` after a resume).
  int64_t steps_run = 0;
  /// Of those, done by CUDA graphs.
  int64_t graph_steps = 0;
  /// Loss of the last step.
  double loss = 0;
  /// Steps of this run that were skipped, their gradients not being finite.
  int64_t skipped_steps = 0;
  /// The last evaluation and the best one by `monitor`; empty without evaluation.
  Metrics evaluation;
  Metrics best_evaluation;
  int64_t best_step = 0;
  double wall_seconds = 0;
  /// Share of wall_seconds that was not spent on evaluation and saves, 0 to 1.
  double effective_fraction = 0;
  /// The most that lived on one device in a step, as predicted and as it was; 0 where nobody predicted, and the latter
  /// where several replicas share the CPU.
  int64_t predicted_memory_bytes = 0;
  int64_t real_memory_bytes = 0;
  /// On a GPU: what its allocator has reserved of the driver for that.
  int64_t predicted_reserved_bytes = 0;
  int64_t real_reserved_bytes = 0;
  /// Micro-batches that each batch was split into for want of memory; 1 if there was enough.
  int64_t split = 1;
  /// Share of the time that the loop waited for data, 0 to 1.
  double data_wait_fraction = 0;
  /// How busy the devices were, where the steps' time went, and the settings to change.
  MonitorReport monitor = {};
};

/// What fit may be given besides the training data.
struct FitOptions {
  /// Rows to evaluate on at every `eval_every` steps and at the end; nullptr evaluates nothing.
  Prefetcher* validation = nullptr;
  /// Another loss for evaluation; by default that of training.
  LossFunction validation_loss = nullptr;
  /// Called on the training thread after each evaluation, before it is logged: adds metrics, prints samples.
  /// It must not draw from the default random generators, or a resumed run differs from one that was not stopped.
  std::function<void(int64_t step, Metrics& metrics)> on_evaluation = nullptr;
  /// Where records go; several sinks at once with RunLogger. Not owned; nullptr logs nothing.
  Logger* logger = nullptr;
};

/// Trains a model.
///
///   auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}), {.max_epochs = 5}).value();
///   auto result = trainer.fit(*loader, [](Classifier& model, const Batch& b) {
///     return cross_entropy(model->forward(b["x"]), b["y"]);
///   }).value();
///
/// A run that is stopped at any moment and resumed from its checkpoint ends with the same bits as one that was not
/// stopped, in the middle of an epoch too: the checkpoint holds weights, optimizer, schedule, scaler, random generators
/// and the place in the data. The steady step reads nothing back from the device; records are read when the copy is
/// done.
///
/// Not thread-safe; fit runs on the calling thread.
class Trainer {
 public:
  /// `optimizer` by value; without parameter groups it gets default_param_groups of the model. `devices` must outlive
  /// the Trainer. kInvalidArgument names every option that is out of range.
  template <std::derived_from<Optimizer> O>
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, O optimizer, const TrainerOptions& options) {
    return create(devices, std::unique_ptr<Optimizer>(std::make_unique<O>(std::move(optimizer))), options);
  }
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, std::unique_ptr<Optimizer> optimizer,
                                        const TrainerOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Trains until a limit is reached. `loss` is called with the user's own model type, or with torch::nn::Module&; see
  /// make_loss_function. Blocks until the run has ended. Errors:
  ///   of the data (exit code 4, 10), of the checkpoint (5), of the disk (6), out of memory (7), loss or gradients not
  ///   finite (9); every exception of the loss function or LibTorch, translated.
  template <class F>
  absl::StatusOr<TrainerResult> fit(Prefetcher& loader, F loss, const FitOptions& options = {}) {
    return fit_loss(loader, make_loss_function(std::move(loss)), options);
  }

  Optimizer& optimizer();
  DeviceReplicator& devices();
  const TrainerOptions& options() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  absl::StatusOr<TrainerResult> fit_loss(Prefetcher& loader, LossFunction loss, const FitOptions& options);
  std::unique_ptr<Impl> impl_;
};

/// Optimizer steps that fit takes with a loader of `batches_per_epoch` batches: what a schedule over the whole run
/// needs to know. 0 without a limit.
int64_t planned_steps(int64_t batches_per_epoch, const TrainerOptions& options);

}  // namespace trainkit
