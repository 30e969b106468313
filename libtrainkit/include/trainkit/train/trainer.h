#pragma once
/// Runs the training loop: data, devices, steps, evaluation, checkpoints and logs.

#include <absl/status/statusor.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch_source.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/logging/logger.h"
#include "trainkit/memory/memory_trace.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/interval.h"
#include "trainkit/train/loss.h"
#include "trainkit/train/player.h"
#include "trainkit/train/session.h"
#include "trainkit/train/train_step.h"

namespace trainkit {

// ---- Turns signals into flags that the training loop checks between steps.

/// Handles SIGINT, SIGTERM, SIGHUP and SIGUSR1 during its lifetime. SIGINT and SIGTERM ask the loop to stop after the
/// current step; SIGUSR1 asks it to save and continue. The handlers only set a flag. SIGHUP (the terminal is closed)
/// counts as SIGTERM, and stays ignored under nohup.
///
/// A second signal to stop ends the process at once with exit code 128 + its number and runs no cleanup; the last
/// saved checkpoint remains valid. The destructor restores the previous handlers. Only one SignalWatch may exist at a
/// time (else c10::Error).
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Returns SIGINT or SIGTERM if one was received since construction, else 0.
  static int stop_signal();
  /// Returns whether SIGUSR1 was received since the last call, and resets the flag.
  static bool take_save_request();
};

/// What to do with a step whose gradients are not finite.
enum class OnNonfinite {
  kFail,     ///< The run ends with exit code 9.
  kSkip,     ///< The step is skipped on the device and changes nothing.
  kRollback  ///< As kSkip; then restores weights and optimizer from the last checkpoint and continues with new rows.
};

struct TrainerOptions {
  /// Limits of one call of fit; 0 means unlimited. At least one of the first two is required for a source with epochs;
  /// max_epochs needs one. A step is an optimizer step.
  int64_t max_epochs = 0;
  int64_t max_steps = 0;
  std::chrono::milliseconds max_time{0};

  Precision precision = Precision::kFp32;
  /// Batches of the loader per optimizer step.
  int64_t grad_accum_steps = 1;
  /// Maximum 2-norm of the gradients over all parameters; 0 disables clipping.
  double grad_clip = 0;
  GradScalerOptions scaler = {};
  /// Decay of an exponential moving average of the weights; 0 disables it. See TrainStepOptions::ema_decay. The
  /// averages are evaluated, saved as the model's weights (checkpoints also keep the trained weights, to resume), and
  /// are the model's weights when fit() returns.
  double ema_decay = 0;
  /// CUDA graphs. Use kAuto if neither loss function nor model reads host values that change; see CudaGraph.
  CudaGraph cuda_graph = CudaGraph::kOff;
  /// Policy for non-finite values. With kFail, gradients are checked if they are clipped, and the loss when it is
  /// logged. The float16 scaler always skips such steps.
  OnNonfinite on_nonfinite = OnNonfinite::kFail;
  /// Number of consecutive skips, or of rollbacks to one checkpoint, that ends the run with exit code 9.
  int64_t max_nonfinite = 20;
  /// Learning-rate schedule, as a factor of Optimizer::initial_lr(); each fit starts it anew. nullptr keeps the rate
  /// constant.
  std::shared_ptr<const LRSchedule> schedule = nullptr;
  /// Lowers the learning rate when the monitored metric stops improving, on top of the schedule.
  std::optional<PlateauOptions> plateau = std::nullopt;

  /// Optimizer steps between records; 0 disables them.
  int64_t log_every = 10;
  /// Unit of LossOutput::weight, in the plural. With "tokens" the training records contain "tokens_per_second" in
  /// addition to "samples_per_second". Empty: only the latter.
  std::string weight_unit = {};
  /// In optimizer steps or epochs; needs FitOptions::validation. early_stopping and plateau need it.
  Interval eval_every = 0;
  /// In optimizer steps, epochs, or time since the last save began, which rank 0 measures. Unless it is 0, the end of
  /// the run is saved too.
  Interval save_every = 0;
  /// Folder of the run; checkpoints are written to its "checkpoints/". Required for save_every and resume.
  std::string output_dir = {};
  /// Number of newest checkpoints to keep; 0 keeps all.
  int64_t keep_last = 3;
  /// Steps between milestones: checkpoints that keep_last does not delete; 0 disables them.
  int64_t keep_every = 0;
  /// If a save fails: true logs a warning and continues, with the last good checkpoint intact; false ends the run (exit
  /// code 6). A background thread writes saves from a copy in host memory, so a failure is noticed some steps later.
  bool continue_on_save_error = false;
  /// Checkpoint to resume from: "latest", a run folder, its "checkpoints/" or one "step-..."; empty starts afresh. If
  /// the second fit of a Trainer wrote it, the first one returns at once and the second one resumes.
  std::string resume = {};
  /// Whether a resumed run takes the learning rate of its optimizer now. False: it keeps the checkpoint's, and warns if
  /// they differ.
  bool override_lr = false;

  /// Evaluation metric that selects the best step and drives the plateau schedule and early stopping. NaN is worse than
  /// every number. With several ranks the first rank's value decides on all of them, with a warning if another differs.
  std::string monitor = "loss";
  bool monitor_higher_is_better = false;
  /// Number of consecutive evaluations without improvement that ends the run; 0 disables early stopping.
  int64_t early_stopping = 0;

  /// Options of the monitor; see Monitor. The live table goes to the logger, the report into the result.
  MonitorOptions monitoring = {};

  /// Step from which 11 steps are written to `<output_dir>/profile.json`, as a trace of operations, stages, loader
  /// workers, copies and saves of all ranks that https://ui.perfetto.dev opens; 0: none. Costs time and memory in these
  /// steps only.
  int64_t profile_step = 0;

  /// See TrainStepOptions.
  std::function<bool()> release_memory = nullptr;
  /// Planned memory of one device in a step (memory_plan.h). Printed with the measured memory after the second step, or
  /// after the step that is captured as a CUDA graph. predicted_device_memory is the memory as a GPU's allocator counts
  /// it.
  std::optional<MemoryBytes> predicted_memory = std::nullopt;
  std::optional<DeviceMemory> predicted_device_memory = std::nullopt;
  /// Returns advice as printable lines when a step runs out of memory with one row at a time (MemoryPlan::ladder).
  /// Called once, on the training thread.
  std::function<std::string()> explain_out_of_memory = nullptr;

  /// Watch SIGINT, SIGTERM, SIGHUP and SIGUSR1 during fit (see SignalWatch).
  bool handle_signals = false;
  /// Configuration of the run, saved in each checkpoint for people to read. The library never reads it.
  StateDict config = {};
};

/// Reason for the end of a run.
enum class ExitReason {
  kMaxEpochs,
  kMaxSteps,
  kMaxTime,
  kEarlyStopping,
  kSignal,
  kEndOfData,  ///< a source without epochs has ended
  kEnded,      ///< Session::finish() before a limit
  kStopped     ///< Session::request_stop(), or an event
};
const char* to_string(ExitReason reason);

struct TrainerResult {
  ExitReason reason = ExitReason::kMaxEpochs;
  /// Signal that ended the run, else 0.
  int signal = 0;
  /// Optimizer steps since the beginning of the first run, over all fits, and epochs of the loader (a fraction within
  /// one).
  int64_t steps = 0;
  double epochs = 0;
  /// Optimizer steps of this run only (fewer than `steps` after a resume).
  int64_t steps_run = 0;
  /// Steps of this run that CUDA graphs ran.
  int64_t graph_steps = 0;
  /// Loss of the last step.
  double loss = 0;
  /// Steps of this run that were skipped because of non-finite gradients.
  int64_t skipped_steps = 0;
  /// The last evaluation and the best one of this fit by `monitor`; empty without evaluation.
  Metrics evaluation;
  Metrics best_evaluation;
  int64_t best_step = 0;
  double wall_seconds = 0;
  /// Share of wall_seconds spent on neither evaluation nor saves, 0 to 1.
  double effective_fraction = 0;
  /// Peak memory of one device in a step, predicted and measured. 0 if there is no prediction; the measurement is also
  /// 0 if several replicas share the CPU.
  int64_t predicted_memory_bytes = 0;
  int64_t real_memory_bytes = 0;
  /// Memory that the GPU's allocator reserved from the driver for it, predicted and measured.
  int64_t predicted_reserved_bytes = 0;
  int64_t real_reserved_bytes = 0;
  /// Micro-batches that each batch was split into because memory ran out; 1 if it never did.
  int64_t split = 1;
  /// Share of the time that the loop waited for data, 0 to 1.
  double data_wait_fraction = 0;
  /// Utilisation of the devices, times of the steps, and settings to change.
  MonitorReport monitor = {};
};

/// A further set of rows to evaluate on.
struct ValidationSet {
  /// Prefix of its metrics: "<name>.loss".
  std::string name;
  Prefetcher* loader = nullptr;
  /// By default that of the first set.
  LossFunction loss = nullptr;
};

/// Optional arguments of Trainer::fit.
struct FitOptions {
  /// Loader of the evaluation, at every `eval_every` steps and at the end; nullptr disables evaluation. Not the loader
  /// of the training: an evaluation moves it.
  Prefetcher* validation = nullptr;
  /// Loss of the evaluation; by default the training loss.
  LossFunction validation_loss = nullptr;
  /// More sets, evaluated after `validation`, which they need. TrainerOptions::monitor may name one of their metrics.
  std::vector<ValidationSet> validation_sets = {};
  /// Evaluate with gradients enabled, for losses that differentiate: forces, residuals of equations. The results are
  /// detached. Use autograd::grad in the loss, since backward() would leave gradients in the weights.
  bool validation_with_grad = false;
  /// Keep the weights of the best evaluation by TrainerOptions::monitor in `<output_dir>/best.safetensors`; see
  /// BestModel, which restores them.
  bool keep_best = false;
  /// Called on the training thread after each evaluation, before it is logged. May add metrics, print samples, freeze
  /// and unfreeze parameters and add groups to the optimizer. Modes that it changes (train(), eval()) are those from
  /// before again when it returns, and a warning is logged once. Must not draw from the default random generators: a
  /// resumed run would differ from an uninterrupted one.
  std::function<void(int64_t step, Metrics& metrics)> on_evaluation = nullptr;
  /// Receives what happens in the run. Not owned.
  Events* events = nullptr;
  /// For debugging: end the run with an error when a thread that it does not use draws from LibTorch's default
  /// generators, such as a thread of the host or a loader's worker. A resumed run would differ. The error names the
  /// operation. Costs about a microsecond per operation, in all threads of the process.
  bool watch_generators = false;
  /// Objects of the program that are saved in each checkpoint and restored at a resume, after the model. All ranks give
  /// the same names.
  std::vector<NamedState> state = {};
  /// Receives the records; RunLogger combines several sinks. Not owned; nullptr logs nothing.
  Logger* logger = nullptr;
  /// Opens the logger instead. Called on every rank after the checkpoint to resume from was read and the ranks agree,
  /// and before anything is written, so that a resume that fails changes no file. The logger must live until fit
  /// returns.
  std::function<absl::StatusOr<Logger*>()> open_logger = nullptr;
};

/// Trains a model.
///
///   auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}), {.max_epochs = 5}).value();
///   auto result = trainer.fit(*loader, [](Classifier& model, const Batch& b) {
///     return cross_entropy(model->forward(b["x"]), b["y"]);
///   }).value();
///
/// A run that is stopped at any moment, also within an epoch, and resumed from its checkpoint is bitwise identical to
/// an uninterrupted one. The checkpoint contains weights, optimizer, schedule, scaler, random generators and the
/// position in the data. Steps read nothing back from the device; a record is read when its asynchronous copy is done.
///
/// Each module is trained in the mode that it has when fit() begins: fit() calls neither train() nor eval(), so a
/// frozen BatchNorm that the model factory puts in evaluation mode stays in it. Evaluations restore the modes. A model
/// in evaluation mode, as load_gpt2() returns it, is trained so, and a warning is logged.
///
/// Not thread-safe; fit runs on the calling thread.
class Trainer {
 public:
  /// Creates a trainer, which takes over the optimizer: a temporary, or std::move(optimizer). An optimizer without
  /// parameter groups gets default_param_groups of the model. `devices` must outlive the Trainer. kInvalidArgument
  /// names every option that is out of range.
  template <class O>
  requires std::derived_from<std::remove_cvref_t<O>, Optimizer>
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, O&& optimizer, const TrainerOptions& options) {
    static_assert(!std::is_lvalue_reference_v<O>,
                  "Trainer takes over its optimizer: pass std::move(optimizer), or a temporary such as "
                  "AdamW({.lr = 1e-3}); Trainer::optimizer() returns it");
    using Kind = std::remove_cvref_t<O>;
    // std::forward would add an error about copying an lvalue to the one above.
    // NOLINTNEXTLINE(bugprone-move-forwarding-reference)
    return create(devices, std::unique_ptr<Optimizer>(std::make_unique<Kind>(std::move(optimizer))), options);
  }
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, std::unique_ptr<Optimizer>&& optimizer,
                                        const TrainerOptions& options);
  /// A named pointer: compiles to an error with its remedy.
  template <class O>
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, std::unique_ptr<O>& optimizer,
                                        const TrainerOptions& options) {
    static_assert(!std::is_class_v<O>, "Trainer takes over its optimizer: pass std::move(optimizer)");
    return create(devices, std::move(optimizer), options);
  }
  /// Creates a trainer of several players, see Player. They and `shared` (may be null) are copied; the optimizers are
  /// the caller's. schedule, plateau, grad_clip and ema_decay of `options` belong to the players then.
  static absl::StatusOr<Trainer> create(DeviceReplicator& devices, std::vector<Player> players, SharedFunction shared,
                                        const TrainerOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Trains until a limit is reached, or until a source without epochs ends. A second call trains max_epochs
  /// (max_steps) more: step numbers, and so the names of checkpoints, continue; the schedule, the best evaluation and
  /// early stopping start anew. With ema_decay it starts from the averages, which the first call leaves in the model.
  ///
  /// `loss` is called with the user's own model type or with torch::nn::Module&; see make_loss_function. The run owns
  /// it; capture what you want to read afterwards by reference. Without a validation loss of its own an evaluation
  /// calls the same object. Blocks until the run ends. Errors:
  ///   of the data (exit code 4, 10), of the checkpoint (5), of the disk (6), out of memory (7), loss or gradients not
  ///   finite (9); every exception of the loss function or LibTorch, translated.
  template <class F>
  requires(!std::is_same_v<F, FitOptions>) absl::StatusOr<TrainerResult> fit(BatchSource& source, F loss,
                                                                             const FitOptions& options = {}) {
    return fit_loss(source, make_loss_function(std::move(loss)), options);
  }
  /// The same for players, which have their losses.
  absl::StatusOr<TrainerResult> fit(BatchSource& source, const FitOptions& options = {}) {
    return fit_loss(source, nullptr, options);
  }

  /// Begins a run as fit() does, and returns it for the caller's own loop. Resumes if the options ask for it. A Trainer
  /// has one session at a time: another begin() or fit() is an error until its end, finish() or destruction.
  template <class F>
  requires(!std::is_same_v<F, FitOptions>) absl::StatusOr<Session> begin(BatchSource& source, F loss,
                                                                         const FitOptions& options = {}) {
    return begin_loss(&source, make_loss_function(std::move(loss)), options);
  }
  absl::StatusOr<Session> begin(BatchSource& source, const FitOptions& options = {}) {
    return begin_loss(&source, nullptr, options);
  }
  /// The same without a source: the caller passes each batch to Session::step(batch). Neither limit is required.
  template <class F>
  requires(!std::is_same_v<F, FitOptions> &&
           !std::is_base_of_v<BatchSource, F>) absl::StatusOr<Session> begin(F loss, const FitOptions& options = {}) {
    return begin_loss(nullptr, make_loss_function(std::move(loss)), options);
  }
  absl::StatusOr<Session> begin(const FitOptions& options = {}) { return begin_loss(nullptr, nullptr, options); }

  Optimizer& optimizer();
  DeviceReplicator& devices();
  const TrainerOptions& options() const;

 private:
  friend class Session;
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  absl::StatusOr<TrainerResult> fit_loss(BatchSource& source, LossFunction loss, const FitOptions& options);
  absl::StatusOr<Session> begin_loss(BatchSource* source, LossFunction loss, const FitOptions& options);
  std::unique_ptr<Impl> impl_;
};

/// Returns the number of optimizer steps that fit takes with a loader of `batches_per_epoch` batches; 0 without a
/// limit. A schedule over the whole run needs it.
int64_t planned_steps(int64_t batches_per_epoch, const TrainerOptions& options);

}  // namespace trainkit
