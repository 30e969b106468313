#include "trainkit/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "background_saves.h"
#include "core/user_exception.h"
#include "real_memory.h"
#include "run_state.h"
#include "skipped_steps.h"
#include "train/late_scalars.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/signals.h"

namespace trainkit {
namespace {

using Clock = std::chrono::steady_clock;

// Note [Stopping together]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// All ranks must run the same number of steps, or the others wait in a collective for a rank that has ended. A signal,
// the time limit or non-finite values are seen by one rank first. Each rank therefore votes in every step
// (TrainStep::vote), and all act on the largest vote after that step. A vote may leave before the step ends, together
// with the gradients, so a later signal counts for the next step. Limits that all ranks compute alike (steps, epochs,
// early stopping) need no vote.

/// Vote of a rank that reached max_time. Votes on stopping are signal numbers; no stop signal has this one.
constexpr int kTimeIsUp = 1;
/// Votes after non-finite values: roll back to the last checkpoint, or give up. The largest vote wins, so they take
/// precedence over signals, which persist until they are handled. See Note [Stopping together].
constexpr int kRollBack = 1000, kGiveUp = 1001;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

absl::Status check_options(const TrainerOptions& options, const DeviceReplicator& devices) {
  std::string problems;
  const auto require = [&](bool valid, const std::string& problem) {
    if (!valid) problems += (problems.empty() ? "" : "; ") + problem;
  };
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    require(value >= least,
            std::string(name) + " must be >= " + std::to_string(least) + ", got " + std::to_string(value));
  };
  at_least("max_epochs", options.max_epochs, 0);
  at_least("max_steps", options.max_steps, 0);
  at_least("max_time", options.max_time.count(), 0);
  at_least("grad_accum_steps", options.grad_accum_steps, 1);
  at_least("log_every", options.log_every, 0);
  at_least("eval_every", options.eval_every, 0);
  at_least("save_every", options.save_every, 0);
  at_least("keep_last", options.keep_last, 0);
  at_least("keep_every", options.keep_every, 0);
  require(options.keep_every == 0 || options.save_every > 0, "keep_every needs save_every");
  at_least("early_stopping", options.early_stopping, 0);
  at_least("max_nonfinite", options.max_nonfinite, 1);
  require(options.on_nonfinite != OnNonfinite::kRollback || options.save_every > 0, "rollback needs save_every");
  require(options.max_epochs > 0 || options.max_steps > 0, "max_epochs or max_steps must be given");
  require(options.grad_clip >= 0 && std::isfinite(options.grad_clip), "grad_clip must be >= 0 and finite");
  require(options.save_every == 0 || !options.output_dir.empty(), "save_every needs an output_dir");
  require(options.resume != "latest" || !options.output_dir.empty(), "resume 'latest' needs an output_dir");
  require(options.cuda_graph != CudaGraph::kOn || devices.device().is_cuda(), "cuda_graph on needs a CUDA device");
  require(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
          "precision fp16 needs a GPU; use bf16 on the CPU");
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.options", .problem = problems});
}

std::unique_ptr<LRScheduler> make_scheduler(Optimizer& optimizer, const TrainerOptions& options) {
  if (!options.schedule && !options.plateau) return nullptr;
  auto schedule = options.schedule ? options.schedule : std::make_shared<ConstantLR>();
  std::optional<PlateauOptions> plateau = options.plateau;
  if (plateau) plateau->maximize = options.monitor_higher_is_better;
  return std::make_unique<LRScheduler>(optimizer, std::move(schedule), plateau);
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(DeviceReplicator& devices, std::unique_ptr<Optimizer> optimizer, const TrainerOptions& options)
      : devices_(devices), optimizer_(std::move(optimizer)), options_(options) {
    if (optimizer_->param_groups().empty()) {
      for (auto& group : default_param_groups(*devices_.module())) optimizer_->add_param_group(std::move(group));
    }
  }

  DeviceReplicator& devices_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainerOptions options_;
};

namespace {

/// Makes the error of a run that runs out of memory with one row at a time, after printing advice.
absl::Status out_of_memory(const absl::Status& status, const TrainerOptions& options, Logger* logger) {
  if (logger && options.explain_out_of_memory) logger->print(options.explain_out_of_memory());
  return to_status(
      {.exit_code = ExitCode::kOutOfMemory,
       .id = "memory.exhausted",
       .problem = "a step does not fit into memory, even with one row at a time: " + std::string(status.message()),
       .hint = "use a smaller model or a device with more memory"});
}

/// One call of fit: its state, and the work at each interval.
class Run {
 public:
  Run(DeviceReplicator& devices, Optimizer& optimizer, const TrainerOptions& options, Prefetcher& loader,
      LossFunction loss, const FitOptions& fit)
      : devices_(devices),
        optimizer_(optimizer),
        options_(options),
        loader_(loader),
        loss_(with_step(std::move(loss), "the loss function")),
        validation_loss_(fit.validation_loss ? with_step(fit.validation_loss, "the loss function of the evaluation")
                                             : loss_),
        fit_(fit),
        group_(devices.process_group()),
        scheduler_(make_scheduler(optimizer, options)),
        step_(devices, optimizer,
              {.precision = options.precision,
               .grad_accum_steps = options.grad_accum_steps,
               .grad_clip = options.grad_clip,
               .skip_nonfinite = options.on_nonfinite != OnNonfinite::kFail || options.grad_clip > 0,
               .scaler = options.scaler,
               .cuda_graph = options.cuda_graph,
               .release_memory = options.release_memory},
              scheduler_.get()),
        saves_(group_),
        skipped_(options.on_nonfinite == OnNonfinite::kFail && options.precision != Precision::kFp16
                     ? 1
                     : options.max_nonfinite) {}

  absl::StatusOr<TrainerResult> operator()() {
    std::optional<SignalWatch> signals;
    if (options_.handle_signals) signals.emplace();
    use_device();
    TRAINKIT_RETURN_IF_ERROR(prepare());
    devices_.module()->train();
    start_ = interval_start_ = Clock::now();
    first_stats_ = loader_.stats();
    monitor_.emplace(loader_, monitor_sources(), options_.monitoring);
    TRAINKIT_RETURN_IF_ERROR(evaluate_again());
    for (bool first = true; !finished_;) {
      TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader_.next());
      if (std::exchange(first, false)) monitor_->begin();
      if (batch) {
        interval_rows_ += batch->size() - batch->padding_rows();
        progress_.rows.add(batch->row_indices());
        if (group_) vote();  // may be sent with the gradients
        if (measures_now()) real_memory_.emplace(devices_, optimizer_);
        take_step([&] { step_.accumulate(*batch, loss_); });
        if (step_.accumulated() == options_.grad_accum_steps) TRAINKIT_RETURN_IF_ERROR(complete_step());
      } else {
        if (step_.accumulated() > 0) TRAINKIT_RETURN_IF_ERROR(complete_step());
        check_epochs();
      }
    }
    result_.monitor = monitor_->stop();
    TRAINKIT_RETURN_IF_ERROR(end());
    return std::move(result_);
  }

 private:
  /// Wraps a loss function: its exceptions become errors that name the step.
  LossFunction with_step(LossFunction loss, const char* who) const {
    return [this, who, loss = std::move(loss)](torch::nn::Module& model, const Batch& batch) {
      try {
        return loss(model, batch);
      } catch (...) {
        const int64_t step = progress_.step + (model.is_training() ? 1 : 0);
        throw absl::BadStatusOrAccess(detail::status_from_user_exception("step " + std::to_string(step), who));
      }
    };
  }

  /// Calls a part of the step. If memory runs out there, not even one row at a time fits.
  template <class Call>
  void take_step(const Call& call) {
    try {
      call();
    } catch (const std::exception&) {
      const absl::Status status = status_from_current_exception();
      if (!absl::IsResourceExhausted(status) || error_of(status)) throw;  // Errors are of another rank or the planner
      throw absl::BadStatusOrAccess(out_of_memory(status, options_, fit_.logger));
    }
  }

  bool is_first() const { return !group_ || group_->rank() == 0; }
  int64_t ranks() const { return group_ ? group_->world_size() : 1; }
  bool is_saving() const { return options_.save_every > 0 && !options_.output_dir.empty(); }

  /// Makes loaders that were created without a device copy their batches to it from now on.
  void use_device() {
    if (devices_.replicas() > 1 || !devices_.device().is_cuda()) return;
    for (Prefetcher* loader : {&loader_, fit_.validation}) {
      if (loader && loader->options().device.is_cpu()) loader->use_device(devices_.device());
    }
  }

  /// Opens the checkpoint folder, resumes if requested, and checks whether any work is left.
  absl::Status prepare() {
    if (loader_.batches_per_epoch() == 0) {
      return to_status({.exit_code = ExitCode::kData,
                        .id = "data.empty",
                        .problem = "no batch to train on",
                        .got = std::to_string(loader_.dataset().size()) + " rows",
                        .expected = "at least one batch of " + std::to_string(loader_.options().batch_size),
                        .hint = "use a smaller batch size, or keep the last batch (drop_last = false)"});
    }
    if (is_first() && !options_.output_dir.empty() && (options_.save_every > 0 || !options_.resume.empty())) {
      TRAINKIT_RETURN_IF_ERROR(saves_.open(
          options_.output_dir, {.keep_last = static_cast<int>(options_.keep_last), .keep_every = options_.keep_every}));
    }
    if (!options_.resume.empty()) {
      const double asked_lr = base_lr();
      TRAINKIT_ASSIGN_OR_RETURN(const std::string differs,
                                resume_run(options_.resume, options_.output_dir, parts(), shape(), progress_));
      if (fit_.logger && !differs.empty()) fit_.logger->print("warning: " + differs);
      log_learning_rate(asked_lr);
      if (fit_.logger) TRAINKIT_RETURN_IF_ERROR(fit_.logger->rewind(progress_.step));
      last_saved_ = progress_.step;
    }
    TRAINKIT_RETURN_IF_ERROR(compare_ranks());
    if (!options_.resume.empty()) {
      step_.set_step(progress_.step);
      step_.set_weight_unit(progress_.weight_unit);
      step_.set_split(progress_.split);
      step_.synchronize();
    }
    reserve_schedule();
    first_step_ = progress_.step;
    result_.split = step_.split();
    if (options_.predicted_memory) result_.predicted_memory_bytes = predicted_memory().allocated_bytes;
    if (options_.predicted_memory) result_.predicted_reserved_bytes = predicted_memory().reserved_bytes;
    if (fit_.logger) {
      fit_.logger->begin({.first_step = first_step_,
                          .total_steps = planned_steps(loader_.batches_per_epoch(), options_),
                          .total_epochs = static_cast<double>(options_.max_epochs)});
    }
    if (!group_ && options_.handle_signals) check_stop(SignalWatch::stop_signal());  // several ranks vote after a step
    check_limits();
    check_epochs();
    check_patience();
    return absl::OkStatus();
  }

  double base_lr() const { return scheduler_ ? scheduler_->base_lr() : optimizer_.lr(); }

  /// Warns if the learning rate of the flags is ignored, because a resumed run keeps the checkpoint's.
  void log_learning_rate(double asked) {
    if (!fit_.logger || asked == base_lr()) return;
    fit_.logger->print(fmt::format(
        "warning: resuming with the checkpoint's learning rate {:g}; {:g} is ignored. Use --init_from to start a "
        "new run from its weights",
        base_lr(), asked));
  }

  /// Creates the device's table of learning rates before the first step, since extending it later waits for the device.
  void reserve_schedule() {
    constexpr int64_t kLongest = 1 << 20;
    const int64_t steps = planned_steps(loader_.batches_per_epoch(), options_);
    if (scheduler_) scheduler_->reserve(std::min(steps + 2, kLongest));
  }

  /// Compares settings and data of the ranks before the first collective. If they differed, rows and gradients would
  /// not match, or one rank would finish before the others.
  absl::Status compare_ranks() {
    if (!group_) return absl::OkStatus();
    std::vector<DigestField> fields = {{"max_epochs", std::to_string(options_.max_epochs)},
                                       {"max_steps", std::to_string(options_.max_steps)},
                                       {"precision", std::to_string(static_cast<int>(options_.precision))},
                                       {"grad_accum_steps", std::to_string(options_.grad_accum_steps)},
                                       {"grad_clip", std::to_string(options_.grad_clip)},
                                       {"log_every", std::to_string(options_.log_every)},
                                       {"eval_every", std::to_string(options_.eval_every)},
                                       {"save_every", std::to_string(options_.save_every)},
                                       {"batch_size", std::to_string(loader_.options().batch_size)},
                                       {"batches per epoch", std::to_string(loader_.batches_per_epoch())},
                                       {"seed of the order", std::to_string(loader_.sampler().seed())},
                                       {"step of the checkpoint", std::to_string(progress_.step)}};
    append_data_fields("training", loader_.dataset(), fields);
    if (fit_.validation) append_data_fields("validation", fit_.validation->dataset(), fields);
    return group_->compare_digest(fields);
  }

  absl::Status complete_step() {
    vote();
    take_step([&] { last_metrics_ = step_.finish(); });
    averaged_ = false;
    skipped_.add(progress_.step + 1, last_metrics_);
    log_skips(/*wait=*/false);
    if (!options_.weight_unit.empty()) interval_weight_ += last_metrics_.world_weight;
    const int64_t step = ++progress_.step;
    progress_.weight_unit = step_.weight_unit();
    if (real_memory_ && is_steady()) log_memory();
    if (step_.split() != progress_.split) log_split();
    log_graphs();
    if (fit_.logger) {
      fit_.logger->tick(step);
      for (const std::string& row : monitor_->take_rows()) fit_.logger->print(row);
    }
    // On the CPU non-finite values are known immediately and are the same on all ranks; on devices the ranks vote.
    const int stop = !group_                      ? local_stop()
                     : devices_.device().is_cpu() ? std::max(step_.verdict().stop, nonfinite_stop())
                                                  : step_.verdict().stop;
    if (stop == kGiveUp) return skipped_.error();
    if (stop == kRollBack) return roll_back();
    TRAINKIT_RETURN_IF_ERROR(check_background_save());
    check_stop(stop);
    check_limits();
    if (options_.log_every > 0 && step % options_.log_every == 0) TRAINKIT_RETURN_IF_ERROR(log_step());
    const bool milestone = options_.keep_every > 0 && step % options_.keep_every == 0;
    const bool save_due = is_saving() && (step_.verdict().save || step % options_.save_every == 0 || milestone);
    if (evaluation_due()) {
      TRAINKIT_RETURN_IF_ERROR(evaluate_step(save_due || (is_saving() && was_last_step())));
    }
    if (save_due && !was_last_step()) return save();
    return absl::OkStatus();
  }

  /// Steps after which a run without a captured CUDA graph is reported.
  static constexpr int64_t kLateCapture = 20;

  /// Returns true before the first batch of the second step, which is in the steady state.
  bool measures_now() const {
    return options_.predicted_memory && progress_.step == first_step_ + 1 && step_.accumulated() == 0 &&
           detail::RealMemory::can_measure(devices_);
  }

  /// Returns whether all further steps take the same memory: if they may become a CUDA graph, it must have been
  /// captured.
  bool is_steady() const {
    return !step_.uses_graphs() || step_.graph_captures() > 0 || progress_.step >= first_step_ + kLateCapture;
  }

  DeviceMemory predicted_memory() const {
    const bool on_gpu = !devices_.device().is_cpu() && options_.predicted_device_memory;
    return on_gpu ? *options_.predicted_device_memory
                  : DeviceMemory{.allocated_bytes = options_.predicted_memory->total()};
  }

  void log_memory() {
    const MemoryBytes& classes = *options_.predicted_memory;
    const DeviceMemory predicted = predicted_memory();
    const DeviceMemory real = real_memory_->finish(classes[MemoryClass::kBatch] + classes[MemoryClass::kCache]);
    real_memory_.reset();
    result_.real_memory_bytes = real.allocated_bytes;
    result_.real_reserved_bytes = real.reserved_bytes;
    if (!fit_.logger || real.allocated_bytes == 0) return;
    const auto compared = [](int64_t planned, int64_t counted, const char* where) {
      return fmt::format("{} predicted {}, {} real ({:+.1f}%)", format_size(planned), where, format_size(counted),
                         100 * (static_cast<double>(planned) / static_cast<double>(counted) - 1));
    };
    std::string text = "memory: " + compared(predicted.allocated_bytes, real.allocated_bytes, "at the peak of a step");
    if (predicted.reserved_bytes > 0 && real.reserved_bytes > 0)
      text += "; " + compared(predicted.reserved_bytes, real.reserved_bytes, "reserved for it");
    fit_.logger->print(text);
  }

  /// Logs that a step ran out of memory and was retried in smaller parts.
  void log_split() {
    progress_.split = result_.split = step_.split();
    if (!fit_.logger) return;
    const int64_t rows = std::max<int64_t>(1, loader_.options().batch_size / step_.split());
    fit_.logger->print(
        fmt::format("out of memory at step {}: each batch is now split into {} parts of about {} rows; "
                    "the rows per step are unchanged",
                    progress_.step, step_.split(), rows));
    const auto buffers = devices_.module()->named_buffers();
    const bool normalises = std::any_of(buffers.begin(), buffers.end(),
                                        [](const auto& buffer) { return buffer.key().ends_with("running_mean"); });
    if (normalises) fit_.logger->print("warning: BatchNorm now normalises over the smaller parts");
  }

  /// Logs once that steps are captured, and once that they no longer are.
  void log_graphs() {
    result_.graph_steps = step_.graph_steps();
    const bool first = std::exchange(captures_, step_.graph_captures()) == 0 && captures_ > 0;
    const bool ended = std::exchange(uses_graphs_, step_.uses_graphs()) && !uses_graphs_;
    const bool late = uses_graphs_ && captures_ == 0 && progress_.step == first_step_ + kLateCapture;
    if (!fit_.logger) return;
    if (first) fit_.logger->print(fmt::format("steps run as one CUDA graph from step {} on", progress_.step));
    if (ended || late) fit_.logger->print("steps run without a CUDA graph: " + step_.graph_reason());
  }

  void log_skips(bool wait) {
    for (const std::string& line : skipped_.take(wait)) {
      if (fit_.logger) fit_.logger->print(line);
    }
    result_.skipped_steps = skipped_.total();
  }

  /// Restores weights and optimizer of the last checkpoint and continues with the next rows. Without a checkpoint the
  /// skipped step is the only consequence.
  absl::Status roll_back() {
    skipped_.reset_consecutive();
    TRAINKIT_RETURN_IF_ERROR(finish_save());
    if (last_saved_ < 0) return absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(emit(/*wait=*/true));
    const int64_t from = progress_.step;
    TRAINKIT_RETURN_IF_ERROR(roll_back_run(options_.output_dir, parts(), progress_));
    rollbacks_ = std::exchange(rolled_back_to_, progress_.step) == progress_.step ? rollbacks_ + 1 : 1;
    if (rollbacks_ >= options_.max_nonfinite) return skipped_.error();
    step_.set_step(progress_.step);
    step_.synchronize();
    if (!fit_.logger) return absl::OkStatus();
    fit_.logger->print(fmt::format("rolled back from step {} to the weights of step {}; continuing with the next rows",
                                   from, progress_.step));
    return fit_.logger->rewind(progress_.step);
  }

  void vote() {
    step_.vote().stop = std::max(step_.vote().stop, local_stop());
    step_.vote().save |= options_.handle_signals && SignalWatch::take_save_request();
  }

  /// Returns this rank's reason to stop: non-finite values, a signal, kTimeIsUp; 0 to continue.
  int local_stop() const {
    if (const int stop = nonfinite_stop()) return stop;
    const int number = options_.handle_signals ? SignalWatch::stop_signal() : 0;
    const bool late = options_.max_time.count() > 0 && Clock::now() - start_ >= options_.max_time;
    return number != 0 ? number : late ? kTimeIsUp : 0;
  }

  int nonfinite_stop() const {
    if (skipped_.too_many()) return kGiveUp;
    return options_.on_nonfinite == OnNonfinite::kRollback && skipped_.skipped_last() ? kRollBack : 0;
  }

  /// Ends the run if all ranks agreed to stop.
  void check_stop(int stop) {
    if (stop == 0 || finished_) return;
    if (stop == kTimeIsUp) return finish(ExitReason::kMaxTime);
    result_.signal = stop;
    finish(ExitReason::kSignal);
  }

  void check_limits() {
    if (!finished_ && has_all_steps()) finish(ExitReason::kMaxSteps);
  }

  void check_epochs() {
    if (!finished_ && options_.max_epochs > 0 && loader_.epoch() >= options_.max_epochs) finish(ExitReason::kMaxEpochs);
  }

  void check_patience() {
    const bool lost = options_.early_stopping > 0 && progress_.bad_evaluations >= options_.early_stopping;
    if (lost && !finished_) finish(ExitReason::kEarlyStopping);
  }

  bool has_all_steps() const { return options_.max_steps > 0 && progress_.step >= options_.max_steps; }
  bool has_all_epochs() const {
    const int64_t epochs = loader_.epoch() + (loader_.at_epoch_end() ? 1 : 0);
    return options_.max_epochs > 0 && epochs >= options_.max_epochs;
  }
  /// Returns whether the step was the last one; end() evaluates and saves it.
  bool was_last_step() const { return finished_ || has_all_epochs(); }

  void finish(ExitReason reason) {
    finished_ = true;
    result_.reason = reason;
  }

  // Note [End of an interrupted run]
  // ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
  // A run that a signal stops and that is resumed later must produce the records and bits of an uninterrupted run.
  // Therefore, after a signal:
  // - the last step gets no extra log record and no evaluation, which the uninterrupted run would not have there;
  // - if the signal arrived in the last step of the last epoch, the loader is advanced past the end of the epoch, so
  //   that the saved position is that of a finished run;
  // - the final evaluation of a finished run is left to the resumed run, which learns from
  //   progress_.evaluated_step that it is missing.
  // The order is that of every other step: log record, evaluation, checkpoint.

  /// Writes the last log record, evaluation and checkpoint. See Note [End of an interrupted run].
  absl::Status end() {
    const bool trained = progress_.step > first_step_;
    // See Note [End of an interrupted run].
    if (result_.reason == ExitReason::kSignal && has_all_epochs() && !has_all_steps() && loader_.at_epoch_end()) {
      TRAINKIT_RETURN_IF_ERROR(loader_.next().status());
    }
    if (trained) {
      log_skips(/*wait=*/true);
      if (skipped_.too_many()) return skipped_.error();
      // See Note [End of an interrupted run].
      const bool will_resume = result_.reason == ExitReason::kSignal && !has_all_steps() && !has_all_epochs();
      const bool due = options_.log_every > 0 && progress_.step % options_.log_every != 0;
      if (due && !will_resume) TRAINKIT_RETURN_IF_ERROR(log_step());
      TRAINKIT_RETURN_IF_ERROR(emit(/*wait=*/true));
      average_metrics();
      result_.loss = LateScalars({last_metrics_.loss}).values()[0];
    }
    // After the record of the step, as in any other step.
    const bool evaluates =
        fit_.validation && result_.reason != ExitReason::kSignal && progress_.evaluated_step != progress_.step;
    if (evaluates) TRAINKIT_RETURN_IF_ERROR(evaluate_step(is_saving()));
    TRAINKIT_RETURN_IF_ERROR(finish_save());
    if (is_saving() && (evaluates || last_saved_ != progress_.step)) TRAINKIT_RETURN_IF_ERROR(save());
    TRAINKIT_RETURN_IF_ERROR(finish_save());
    if (fit_.logger) TRAINKIT_RETURN_IF_ERROR(fit_.logger->flush());
    result_.steps = progress_.step;
    result_.steps_run = progress_.step - first_step_;
    result_.epochs = epoch_fraction();
    result_.best_evaluation = progress_.best;
    result_.best_step = progress_.best_step;
    result_.wall_seconds = seconds_since(start_);
    result_.effective_fraction = result_.wall_seconds > 0 ? 1 - pause_seconds_ / result_.wall_seconds : 0;
    result_.data_wait_fraction = difference(loader_.stats(), first_stats_).wait_fraction();
    return absl::OkStatus();
  }

  /// Returns the callbacks that the monitor's thread may call.
  MonitorSources monitor_sources() {
    MonitorSources sources{.step_times = [this] { return step_.times(); }};
    for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
      const at::Device device = devices_.device(replica);
      if (device.is_cuda()) sources.cuda_devices.push_back(std::max<int>(device.index(), 0));
    }
    if (!sources.cuda_devices.empty()) sources.allocators = [this] { return allocator_use(devices_); };
    return sources;
  }

  /// Averages the metrics of the last step over all ranks, once.
  void average_metrics() {
    if (!std::exchange(averaged_, true)) step_.average_over_ranks(last_metrics_);
  }

  /// Starts to read the scalars of the step; the record is logged when they are on the host.
  absl::Status log_step() {
    // All ranks must end at the same step if a loss is not finite. Earlier records are therefore read now on all of
    // them; their copies finished long ago.
    if (group_) TRAINKIT_RETURN_IF_ERROR(emit(/*wait=*/true));
    average_metrics();
    const double seconds = seconds_since(interval_start_);
    Pending pending;
    pending.record = {.step = progress_.step, .epoch = epoch_fraction(), .split = "train"};
    pending.names = {"loss"};
    std::vector<at::Tensor> scalars = {last_metrics_.loss};
    for (const auto& [name, value] : last_metrics_.metrics) {
      pending.names.push_back(name);
      scalars.push_back(value);
    }
    if (last_metrics_.grad_norm.defined()) {
      pending.names.push_back("grad_norm");
      scalars.push_back(last_metrics_.grad_norm);
    }
    const std::vector<at::Tensor>& lrs = optimizer_.device_group_lrs();
    scalars.insert(scalars.end(), lrs.begin(), lrs.end());
    pending.scalars = LateScalars(scalars);
    pending.record.values = {{"samples_per_second", static_cast<double>(interval_rows_ * ranks()) / seconds}};
    if (interval_weight_ > 0) {
      pending.record.values.emplace_back(options_.weight_unit + "_per_second", interval_weight_ / seconds);
    }
    monitor_->append_values(pending.record.values);
    if (lrs.empty()) pending.record.lr = optimizer_.group_lrs();
    TRAINKIT_RETURN_IF_ERROR(add_gpus(pending.record));
    pending_.push_back(std::move(pending));
    interval_rows_ = 0;
    interval_weight_ = 0;
    interval_start_ = Clock::now();
    return group_ && !devices_.device().is_cpu() ? absl::OkStatus() : emit(/*wait=*/false);
  }

  /// Adds memory and utilisation of every GPU, including those of other ranks.
  absl::Status add_gpus(LogRecord& record) {
    record.gpu_memory_bytes = device_memory_bytes(devices_);
    record.gpu_utilisation = monitor_->gpu_utilisation();
    if (!group_ || record.gpu_memory_bytes.empty()) return absl::OkStatus();
    return gather_gpus(*group_, record.gpu_memory_bytes, record.gpu_utilisation);
  }

  double epoch_fraction() const {
    return static_cast<double>(loader_.epoch()) +
           static_cast<double>(loader_.position()) / static_cast<double>(loader_.batches_per_epoch());
  }

  /// Logs the records whose scalars have arrived; all of them with `wait`.
  absl::Status emit(bool wait) {
    while (!pending_.empty() && (wait || pending_.front().scalars.ready())) {
      Pending pending = std::move(pending_.front());
      pending_.pop_front();
      const std::vector<double> values = pending.scalars.values();
      std::vector<std::pair<std::string, double>> named;
      named.reserve(pending.names.size() + pending.record.values.size());
      for (size_t i = 0; i < pending.names.size(); ++i) named.emplace_back(std::move(pending.names[i]), values[i]);
      const auto lrs = values.begin() + static_cast<ptrdiff_t>(pending.names.size());
      if (lrs != values.end()) pending.record.lr.assign(lrs, values.end());
      for (auto& value : pending.record.values) named.push_back(std::move(value));
      pending.record.values = std::move(named);
      if (fit_.logger) fit_.logger->log(pending.record);
      TRAINKIT_RETURN_IF_ERROR(check_finite(values[0], pending.record.step));
    }
    return absl::OkStatus();
  }

  /// Ends the run if a loss is not finite. In float16 up to 9 consecutive ones are allowed, while the scale is still
  /// too large.
  absl::Status check_finite(double loss, int64_t step) {
    if (options_.on_nonfinite != OnNonfinite::kFail) return absl::OkStatus();  // such steps are skipped
    nonfinite_ = std::isfinite(loss) ? 0 : nonfinite_ + 1;
    if (nonfinite_ < (step_.scaler().enabled() ? 10 : 1)) return absl::OkStatus();
    return to_status({.exit_code = ExitCode::kNumerics,
                      .id = "train.nonfinite",
                      .field = "loss",
                      .problem = "is not finite at step " + std::to_string(step),
                      .got = std::isnan(loss) ? "nan" : "inf",
                      .hint = "lower the learning rate, clip gradients (--grad_clip 1) or use --precision fp32"});
  }

  bool evaluation_due() const {
    return fit_.validation && options_.eval_every > 0 && progress_.step % options_.eval_every == 0;
  }

  // Note [Failed evaluation]
  // ~~~~~~~~~~~~~~~~~~~~~~~~
  // A checkpoint is written after the evaluation of its step, because it contains the evaluation's effects (best step,
  // plateau schedule, early stopping). If the evaluation fails, the checkpoint that is due is written without them
  // before the error ends the run: it has an older evaluated_step. A run resumed from it evaluates first
  // (evaluate_again()), so it continues as a run whose evaluation did not fail. All ranks learn of a failure on one of
  // them, since the save needs collectives.

  /// Evaluates. If that fails and a save is due, writes the checkpoint before it returns the error. See
  /// Note [Failed evaluation].
  absl::Status evaluate_step(bool save_due) {
    TRAINKIT_RETURN_IF_ERROR(emit(/*wait=*/true));
    TRAINKIT_RETURN_IF_ERROR(finish_save());  // on_evaluation may look up the last checkpoint, as BestModel does
    const Clock::time_point start = begin_pause();
    absl::StatusOr<Metrics> metrics = evaluate_on_all_ranks();
    if (metrics.ok()) record_evaluation(*std::move(metrics));
    end_pause(start);
    if (metrics.ok() || !save_due) return metrics.status();
    absl::Status saved = save();
    if (saved.ok()) saved = finish_save();
    if (!saved.ok() && fit_.logger) fit_.logger->print("warning: " + error_line(saved));
    return metrics.status();
  }

  /// Evaluates a resumed step whose evaluation failed in the run that saved it. See Note [Failed evaluation].
  absl::Status evaluate_again() {
    const bool failed = !options_.resume.empty() && !finished_ && evaluation_due() && progress_.step > 0 &&
                        progress_.evaluated_step != progress_.step;
    return failed ? evaluate_step(/*save_due=*/false) : absl::OkStatus();
  }

  /// Evaluates and calls on_evaluation. Returns an error on all ranks if one of them fails.
  absl::StatusOr<Metrics> evaluate_on_all_ranks() {
    absl::StatusOr<Metrics> metrics;
    const char* who = "the evaluation";
    try {
      metrics = evaluate_now();
      who = "on_evaluation";
      if (metrics.ok() && fit_.on_evaluation) fit_.on_evaluation(progress_.step, *metrics);
    } catch (...) {
      metrics = detail::status_from_user_exception("step " + std::to_string(progress_.step), who);
    }
    if (metrics.ok() && !metrics->contains(options_.monitor)) {
      metrics = to_status({.exit_code = ExitCode::kUsage,
                           .id = "train.monitor",
                           .field = "monitor",
                           .problem = "is not a metric of the evaluation",
                           .got = options_.monitor});
    }
    if (!metrics.ok()) metrics = annotate(metrics.status(), "evaluation after step " + std::to_string(progress_.step));
    if (!group_ || !group_->usable()) return metrics;
    const at::Tensor failures = at::full({1}, metrics.ok() ? 0.0 : 1.0, at::kDouble);
    const absl::Status agreed = group_->all_reduce(failures, "the end of the evaluation");
    if (!metrics.ok()) return metrics;
    TRAINKIT_RETURN_IF_ERROR(agreed);
    if (failures.item<double>() == 0) return metrics;
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "dist.peer",
                      .problem = "the evaluation failed on another rank; see its error"});
  }

  void record_evaluation(Metrics metrics) {
    progress_.evaluated_step = progress_.step;
    const double value = metrics.at(options_.monitor);
    const auto best = progress_.best.find(options_.monitor);
    const bool improved = best == progress_.best.end() ||
                          (options_.monitor_higher_is_better ? value > best->second : value < best->second);
    if (improved) {
      progress_.best = metrics;
      progress_.best_step = progress_.step;
    }
    progress_.bad_evaluations = improved ? 0 : progress_.bad_evaluations + 1;
    if (options_.plateau) scheduler_->step_metric(value);
    check_patience();
    if (fit_.logger) {
      LogRecord record{.step = progress_.step,
                       .epoch = epoch_fraction(),
                       .split = "val",
                       .values = {},
                       .lr = {},
                       .gpu_memory_bytes = {}};
      record.values.emplace_back("loss", metrics.at("loss"));
      for (const auto& [name, metric] : metrics) {
        if (name != "loss") record.values.emplace_back(name, metric);
      }
      fit_.logger->log(record);
    }
    result_.evaluation = std::move(metrics);
  }

  /// Evaluates. If memory runs out and captured steps hold some, drops them and evaluates again.
  absl::StatusOr<Metrics> evaluate_now() {
    const auto lacks_memory = [this](const absl::Status& status) {
      return absl::IsResourceExhausted(status) && step_.drop_graphs("out of memory in an evaluation");
    };
    try {
      auto metrics = evaluate(devices_, *fit_.validation, validation_loss_, options_.precision);
      if (!lacks_memory(metrics.status())) return metrics;
    } catch (const std::exception&) {
      if (!lacks_memory(status_from_current_exception())) throw;
    }
    return evaluate(devices_, *fit_.validation, validation_loss_, options_.precision);
  }

  /// Excludes evaluation and saves from the measured samples per second.
  Clock::time_point begin_pause() {
    monitor_->pause();
    return Clock::now();
  }

  void end_pause(Clock::time_point start) {
    monitor_->resume();
    interval_start_ += Clock::now() - start;
    pause_seconds_ += seconds_since(start);
  }

  /// Saves a checkpoint. The first rank writes it in a background thread; training continues as soon as the state is
  /// copied. See Note [Background saves] in background_saves.cpp.
  absl::Status save() {
    TRAINKIT_RETURN_IF_ERROR(finish_save());  // one at a time
    TRAINKIT_RETURN_IF_ERROR(emit(/*wait=*/true));
    const Clock::time_point start = begin_pause();
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointContents contents,
                              collect_run(parts(), progress_, shape(), options_.config));
    // Flush the records first, so that a run resumed from this checkpoint does not repeat them.
    const absl::Status logged = fit_.logger ? fit_.logger->flush() : absl::OkStatus();
    saves_.begin(progress_.step, contents, logged);
    end_pause(start);
    return absl::OkStatus();
  }

  /// Waits for the running save, if any. All ranks continue, or all end. Call it before reading or naming the last
  /// checkpoint.
  absl::Status finish_save() {
    if (!saves_.under_way()) return absl::OkStatus();
    const Clock::time_point start = begin_pause();
    const absl::Status saved = saves_.finish();
    end_pause(start);
    if (saved.ok()) {
      last_saved_ = saves_.step();
      warn_of_old_checkpoints();
    } else if (options_.continue_on_save_error) {
      if (fit_.logger)
        fit_.logger->print("warning: " + error_line(saved) + "; continuing with the last good checkpoint");
      return absl::OkStatus();
    }
    return saved;
  }

  /// Warns once if older checkpoints cannot be deleted.
  void warn_of_old_checkpoints() {
    const absl::Status kept = saves_.retention_status();
    if (kept.ok() || std::exchange(warned_of_old_checkpoints_, true) || !fit_.logger) return;
    fit_.logger->print("warning: an older checkpoint cannot be deleted and keeps its disk space: " + error_line(kept));
  }

  /// Ends the run soon after a failed save. Several ranks learn of it together, in finish_save().
  absl::Status check_background_save() { return !group_ && saves_.has_ended() ? finish_save() : absl::OkStatus(); }

  RunShape shape() const {
    const int64_t micro_batch = loader_.options().batch_size * ranks();
    return {.global_batch_size = micro_batch * options_.grad_accum_steps, .replicas = devices_.world_replicas()};
  }

  RunParts parts() { return {devices_, optimizer_, scheduler_.get(), step_.scaler(), loader_}; }

  /// A record whose scalars are being copied: the ones in `names`, then the groups' learning rates if the optimizer
  /// keeps them on the device.
  struct Pending {
    LogRecord record = {};
    std::vector<std::string> names = {};
    LateScalars scalars = {};
  };

  DeviceReplicator& devices_;
  Optimizer& optimizer_;
  const TrainerOptions& options_;
  Prefetcher& loader_;
  LossFunction loss_, validation_loss_;
  const FitOptions& fit_;
  ProcessGroup* group_;  // nullptr: one process
  std::unique_ptr<LRScheduler> scheduler_;
  TrainStep step_;
  BackgroundSaves saves_;

  RunProgress progress_;
  TrainerResult result_;
  bool finished_ = false;
  int64_t first_step_ = 0;
  int64_t last_saved_ = -1;
  bool warned_of_old_checkpoints_ = false;
  int64_t nonfinite_ = 0;
  SkippedSteps skipped_;
  int64_t rollbacks_ = 0, rolled_back_to_ = -1;
  bool uses_graphs_ = step_.uses_graphs();
  int64_t captures_ = 0;
  StepMetrics last_metrics_;
  bool averaged_ = false;  // last_metrics_ are averaged over the ranks
  std::deque<Pending> pending_;
  Clock::time_point start_, interval_start_;
  double pause_seconds_ = 0;
  int64_t interval_rows_ = 0;
  double interval_weight_ = 0;
  PrefetcherStats first_stats_;
  std::optional<detail::RealMemory> real_memory_;  // from the second step until the steady state
  std::optional<Monitor> monitor_;                 // its thread reads step_, so it is destroyed first
};

}  // namespace

const char* to_string(ExitReason reason) {
  switch (reason) {
    case ExitReason::kMaxEpochs:
      return "max_epochs";
    case ExitReason::kMaxSteps:
      return "max_steps";
    case ExitReason::kMaxTime:
      return "max_time";
    case ExitReason::kEarlyStopping:
      return "early_stopping";
    case ExitReason::kSignal:
      return "signal";
  }
  return "unknown";
}

absl::StatusOr<Trainer> Trainer::create(DeviceReplicator& devices, std::unique_ptr<Optimizer> optimizer,
                                        const TrainerOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check_options(options, devices));
  try {
    return Trainer(std::make_unique<Impl>(devices, std::move(optimizer), options));
  } catch (...) {
    return status_from_current_exception();
  }
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Optimizer& Trainer::optimizer() { return *impl_->optimizer_; }
DeviceReplicator& Trainer::devices() { return impl_->devices_; }
const TrainerOptions& Trainer::options() const { return impl_->options_; }

absl::StatusOr<TrainerResult> Trainer::fit_loss(Prefetcher& loader, LossFunction loss, const FitOptions& options) {
  try {
    return Run(impl_->devices_, *impl_->optimizer_, impl_->options_, loader, std::move(loss), options)();
  } catch (...) {
    return status_from_current_exception();
  }
}

int64_t planned_steps(int64_t batches_per_epoch, const TrainerOptions& options) {
  const int64_t per_epoch = (batches_per_epoch + options.grad_accum_steps - 1) / options.grad_accum_steps;
  const int64_t by_epochs = per_epoch * options.max_epochs;
  if (options.max_steps > 0 && (by_epochs == 0 || options.max_steps < by_epochs)) return options.max_steps;
  return by_epochs;
}

}  // namespace trainkit
