#include "train/run/training_run.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/user_exception.h"
#include "core/device/late_scalars.h"
#include "core/tensors/recorded.h"
#include "monitor/diagnosis.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/trainer.h"

namespace trainkit {
namespace {

std::unique_ptr<LRScheduler> make_scheduler(Optimizer& optimizer, const TrainerOptions& options) {
  if (!options.schedule && !options.plateau) return nullptr;
  auto schedule = options.schedule ? options.schedule : constant_lr();
  std::optional<PlateauOptions> plateau = options.plateau;
  if (plateau) plateau->maximize = options.monitor_higher_is_better;
  return std::make_unique<LRScheduler>(optimizer, std::move(schedule), plateau);
}

/// Makes the error of a step that runs out of memory with one row at a time.
absl::Status out_of_memory(const absl::Status& status) {
  return to_status(
      {.exit_code = ExitCode::kOutOfMemory,
       .id = "memory.exhausted",
       .problem = "a step does not fit into memory, even with one row at a time: " + std::string(status.message()),
       .hint = "use a smaller model or a device with more memory"});
}

}  // namespace

TrainingRun::TrainingRun(DeviceReplicator& devices, Optimizer& optimizer, const TrainerOptions& options,
                         Prefetcher& loader, LossFunction loss, const FitOptions& fit, EarlierFits& earlier)
    : devices_(devices),
      optimizer_(optimizer),
      options_(options),
      loader_(loader),
      loss_(with_step(std::move(loss), "the loss function")),
      validation_loss_(fit.validation_loss ? with_step(fit.validation_loss, "the loss function of the evaluation")
                                           : nullptr),
      fit_(fit),
      earlier_(earlier),
      group_(devices.process_group()),
      scheduler_(make_scheduler(optimizer, options)),
      step_(devices, optimizer,
            {.precision = options.precision,
             .grad_accum_steps = options.grad_accum_steps,
             .grad_clip = options.grad_clip,
             .skip_nonfinite = options.on_nonfinite != OnNonfinite::kFail || options.grad_clip > 0,
             .scaler = options.scaler,
             .ema_decay = options.ema_decay,
             .cuda_graph = options.cuda_graph,
             .release_memory = options.release_memory},
            scheduler_.get()),
      saves_(group_),
      skipped_(options.on_nonfinite == OnNonfinite::kFail && options.precision != Precision::kFp16
                   ? 1
                   : options.max_nonfinite),
      records_(fit.logger, options.on_nonfinite != OnNonfinite::kFail ? 0
                           : step_.scaler().enabled()                 ? 10
                                                                      : 1),
      stop_(options, loader, progress_, skipped_),
      validation_(devices, step_, options, fit_, validation_loss_ ? validation_loss_ : loss_),
      profile_(options.output_dir,
               earlier.count > 0 && options.profile_step <= earlier.steps ? 0 : options.profile_step, devices.device(),
               group_) {
  progress_.fit = earlier.count;
  progress_.step = progress_.first_step = earlier.steps;
  progress_.first_epoch = loader.epoch() + (loader.position() > 0 && loader.at_epoch_end() ? 1 : 0);
  progress_.rows = earlier.rows;
  step_.set_step(progress_.step);
}

absl::StatusOr<TrainerResult> TrainingRun::operator()() {
  std::optional<SignalWatch> signals;
  if (options_.handle_signals) signals.emplace();
  use_devices();
  TRAINKIT_RETURN_IF_ERROR(prepare());
  warn_of_model();
  start_ = interval_start_ = reported_ = Clock::now();
  stop_.start();
  first_stats_ = loader_.stats();
  monitor_.emplace(loader_, monitor_sources(), options_.monitoring);
  TRAINKIT_RETURN_IF_ERROR(evaluate_again());
  for (bool first = true; !stop_.finished();) {
    if (step_.accumulated() == 0) TRAINKIT_RETURN_IF_ERROR(record_profile());
    TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, next_batch());
    if (std::exchange(first, false)) monitor_->begin();
    if (batch) {
      interval_rows_ += batch->size() - batch->padding_rows();
      if (is_saving()) progress_.rows.add(batch->row_indices());  // only checkpoints contain them
      if (group_) vote();                                         // may be sent with the gradients
      if (measures_now()) real_memory_.emplace(devices_, optimizer_, step_.averages());
      {
        const detail::ProfileStage stage("forward and backward");
        take_step([&] { step_.accumulate(*batch, loss_); });
      }
      if (step_.accumulated() == options_.grad_accum_steps) TRAINKIT_RETURN_IF_ERROR(complete_step());
    } else {
      if (step_.accumulated() > 0) TRAINKIT_RETURN_IF_ERROR(complete_step());
      stop_.check_epochs();
    }
  }
  result_.monitor = with_memory(monitor_->stop());
  TRAINKIT_RETURN_IF_ERROR(end());
  return std::move(result_);
}

LossFunction TrainingRun::with_step(LossFunction loss, const char* who) const {
  return [this, who, loss = std::move(loss)](torch::nn::Module& model, const Batch& batch) {
    try {
      return loss(model, batch);
    } catch (...) {
      const int64_t step = progress_.step + (c10::GradMode::is_enabled() ? 1 : 0);  // else in an evaluation
      throw absl::BadStatusOrAccess(detail::status_from_user_exception("step " + std::to_string(step), who));
    }
  };
}

void TrainingRun::take_step(c10::function_ref<void()> call) {
  try {
    call();
  } catch (const c10::Error&) {
    throw_step_error(status_from_current_exception());
  } catch (const std::exception&) {  // of a hook or an autograd function
    throw_step_error(
        detail::status_from_user_exception("step " + std::to_string(progress_.step + 1), "the backward pass"));
  }
}

void TrainingRun::throw_step_error(const absl::Status& status) {
  const bool lacks_memory = absl::IsResourceExhausted(status) && !error_of(status);  // else of another rank
  throw absl::BadStatusOrAccess(lacks_memory ? out_of_memory(status) : status);
}

void TrainingRun::use_devices() {
  if (!devices_.device().is_cuda()) return;
  std::vector<at::Device> devices;
  for (int64_t i = 0; i < devices_.replicas(); ++i) devices.push_back(devices_.device(i));
  for (Prefetcher* loader : {&loader_, fit_.validation}) {
    if (loader && loader->options().device.is_cpu()) loader->use_devices(devices);
  }
}

absl::Status TrainingRun::prepare() {
  TRAINKIT_RETURN_IF_ERROR(check_has_batch(loader_));
  const double asked_lr = optimizer_.initial_lr();
  std::string differs;
  if (!options_.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(differs, resume_run(options_.resume, options_.output_dir, parts(), shape(), progress_));
  }
  TRAINKIT_RETURN_IF_ERROR(compare_ranks());
  if (is_first() && !options_.output_dir.empty() && (options_.save_every > 0 || !options_.resume.empty())) {
    TRAINKIT_RETURN_IF_ERROR(saves_.open(
        options_.output_dir, {.keep_last = static_cast<int>(options_.keep_last), .keep_every = options_.keep_every}));
  }
  if (fit_.open_logger) {
    TRAINKIT_ASSIGN_OR_RETURN(fit_.logger, fit_.open_logger());
    records_.use(fit_.logger);
  }
  if (!options_.resume.empty()) TRAINKIT_RETURN_IF_ERROR(continue_run(differs, asked_lr));
  reserve_schedule();
  TRAINKIT_RETURN_IF_ERROR(log_gpu_memory());
  first_step_ = progress_.step;
  result_.split = step_.split();
  if (options_.predicted_memory) result_.predicted_memory_bytes = predicted_memory().allocated_bytes;
  if (options_.predicted_memory) result_.predicted_reserved_bytes = predicted_memory().reserved_bytes;
  begin_log();
  const bool wants_graphs = options_.cuda_graph != CudaGraph::kOff && devices_.device().is_cuda();
  if (fit_.logger && wants_graphs && !step_.uses_graphs()) {
    fit_.logger->print("steps run without a CUDA graph: " + step_.graph_reason());
  }
  if (!group_ && options_.handle_signals)
    stop_.check_vote(SignalWatch::stop_signal());  // several ranks vote after a step
  stop_.check_steps();
  stop_.check_epochs();
  stop_.check_patience();
  return absl::OkStatus();
}

absl::Status TrainingRun::continue_run(const std::string& differs, double asked_lr) {
  if (fit_.logger && !differs.empty()) fit_.logger->print("warning: " + differs);
  if (options_.override_lr) set_base_lr(asked_lr);
  log_learning_rate(asked_lr);
  if (fit_.logger) TRAINKIT_RETURN_IF_ERROR(fit_.logger->rewind(progress_.step));
  earlier_.steps = last_saved_ = progress_.step;
  step_.set_step(progress_.step);
  step_.set_weight_unit(progress_.weight_unit);
  step_.set_split(progress_.split);
  step_.synchronize();
  return absl::OkStatus();
}

void TrainingRun::reserve_schedule() {
  constexpr int64_t kLongest = 1 << 20;
  const int64_t steps = planned_steps(loader_.batches_per_epoch(), options_);
  if (scheduler_) scheduler_->reserve(std::min(steps + 2, kLongest));
}

absl::Status TrainingRun::compare_ranks() {
  if (!group_) return absl::OkStatus();
  // The checkpoint first: its missing or older folder on one machine also changes other fields.
  std::vector<DigestField> fields = {{"step of the checkpoint", std::to_string(progress_.step)},
                                     {"max_epochs", std::to_string(options_.max_epochs)},
                                     {"max_steps", std::to_string(options_.max_steps)},
                                     {"precision", std::to_string(static_cast<int>(options_.precision))},
                                     {"grad_accum_steps", std::to_string(options_.grad_accum_steps)},
                                     {"grad_clip", std::to_string(options_.grad_clip)},
                                     {"ema_decay", std::to_string(options_.ema_decay)},
                                     {"log_every", std::to_string(options_.log_every)},
                                     {"eval_every", std::to_string(options_.eval_every)},
                                     {"save_every", std::to_string(options_.save_every)},
                                     {"early_stopping", std::to_string(options_.early_stopping)},
                                     {"monitor", options_.monitor},
                                     {"batch_size", std::to_string(loader_.options().batch_size)},
                                     {"batches per epoch", std::to_string(loader_.batches_per_epoch())},
                                     {"seed of the order", std::to_string(loader_.sampler().seed())}};
  append_data_fields("training", loader_.dataset(), fields);
  if (fit_.validation) append_data_fields("validation", fit_.validation->dataset(), fields);
  return group_->compare_digest(fields);
}

absl::Status TrainingRun::complete_step() {
  vote();
  wait_for_copy();
  last_lr_ = optimizer_.lr();  // the schedule's next one replaces it
  {
    const detail::ProfileStage stage("update");
    take_step([&] { last_metrics_ = step_.finish(); });
  }
  averaged_ = false;
  skipped_.add(progress_.step + 1, last_metrics_);
  log_skips(/*wait=*/false);
  if (!options_.weight_unit.empty()) interval_weight_ += last_metrics_.world_weight;
  const int64_t step = earlier_.steps = ++progress_.step;
  progress_.weight_unit = step_.weight_unit();
  const bool measured = real_memory_ && is_steady();
  if (measured) log_memory();
  log_monitor(measured);
  if (step_.split() != progress_.split) TRAINKIT_RETURN_IF_ERROR(log_split());
  log_graphs();
  if (fit_.logger) {
    fit_.logger->tick(step);
    for (const std::string& row : monitor_->take_rows()) fit_.logger->show_row(row);
  }
  // On the CPU non-finite values are known immediately and are the same on all ranks; on devices the ranks vote.
  const int stop = !group_                      ? stop_.vote()
                   : devices_.device().is_cpu() ? std::max(step_.agreed_stop(), stop_.nonfinite_vote())
                                                : step_.agreed_stop();
  if (stop == kGiveUp) return skipped_.error();
  if (stop == kRollBack) return roll_back();
  TRAINKIT_RETURN_IF_ERROR(check_background_save());
  stop_.check_vote(stop);
  stop_.check_steps();
  if (options_.log_every > 0 && step % options_.log_every == 0) TRAINKIT_RETURN_IF_ERROR(log_step());
  const bool milestone = options_.keep_every > 0 && step % options_.keep_every == 0;
  const bool save_due = is_saving() && (step_.agreed_save() || step % options_.save_every == 0 || milestone);
  if (evaluation_due()) {
    TRAINKIT_RETURN_IF_ERROR(evaluate_step(save_due || (is_saving() && stop_.was_last_step())));
  }
  if (save_due && !stop_.was_last_step()) return save();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Batch>> TrainingRun::next_batch() {
  const detail::ProfileStage stage("wait for a batch");
  return loader_.next();
}

absl::Status TrainingRun::roll_back() {
  skipped_.reset_consecutive();
  TRAINKIT_RETURN_IF_ERROR(finish_save());
  if (last_saved_ < 0) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
  const int64_t from = progress_.step;
  step_.confirm();
  TRAINKIT_RETURN_IF_ERROR(roll_back_run(options_.output_dir, parts(), progress_));
  rollbacks_ = std::exchange(rolled_back_to_, progress_.step) == progress_.step ? rollbacks_ + 1 : 1;
  if (rollbacks_ >= options_.max_nonfinite) return skipped_.error();
  earlier_.steps = progress_.step;
  step_.set_step(progress_.step);
  step_.synchronize();
  if (!fit_.logger) return absl::OkStatus();
  fit_.logger->print(fmt::format("rolled back from step {} to the weights of step {}; continuing with the next rows",
                                 from, progress_.step));
  return fit_.logger->rewind(progress_.step);
}

void TrainingRun::vote() {
  step_.request_stop(stop_.vote());
  if (options_.handle_signals && SignalWatch::take_save_request()) step_.request_save();
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

absl::Status TrainingRun::end() {
  const bool trained = progress_.step > first_step_;
  // See Note [End of an interrupted run].
  if (stop_.reason() == ExitReason::kSignal && stop_.has_all_epochs() && !stop_.has_all_steps() &&
      loader_.at_epoch_end()) {
    TRAINKIT_RETURN_IF_ERROR(loader_.next().status());
  }
  if (profile_.is_recording()) {
    TRAINKIT_RETURN_IF_ERROR(write_profile());
  } else if (profile_.is_waiting() && fit_.logger) {
    fit_.logger->print(fmt::format("warning: no profile: the run ended before step {}", options_.profile_step));
  }
  if (trained) {
    take_step([&] { step_.confirm(); });
    log_skips(/*wait=*/true);
    if (skipped_.too_many()) return skipped_.error();
    // See Note [End of an interrupted run].
    const bool will_resume = stop_.reason() == ExitReason::kSignal && !stop_.has_all_steps() && !stop_.has_all_epochs();
    const bool due = options_.log_every > 0 && progress_.step % options_.log_every != 0;
    if (due && !will_resume) TRAINKIT_RETURN_IF_ERROR(log_step());
    TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
    average_metrics();
    result_.loss = LateScalars({last_metrics_.loss}).values()[0];
  }
  // After the record of the step, as in any other step.
  const bool evaluates =
      fit_.validation && stop_.reason() != ExitReason::kSignal && progress_.evaluated_step != progress_.step;
  if (evaluates) TRAINKIT_RETURN_IF_ERROR(evaluate_step(is_saving()));
  TRAINKIT_RETURN_IF_ERROR(finish_save());
  if (is_saving() && (evaluates || last_saved_ != progress_.step)) TRAINKIT_RETURN_IF_ERROR(save());
  TRAINKIT_RETURN_IF_ERROR(finish_save());
  step_.swap_averages();  // fit() leaves the averages in the model
  if (fit_.logger) TRAINKIT_RETURN_IF_ERROR(fit_.logger->flush());
  ++earlier_.count;
  earlier_.rows = progress_.rows;
  result_.reason = stop_.reason();
  result_.signal = stop_.signal();
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

bool TrainingRun::evaluation_due() const {
  return fit_.validation && options_.eval_every > 0 && progress_.step % options_.eval_every == 0;
}

// Note [Failed evaluation]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A checkpoint is written after the evaluation of its step, because it contains the evaluation's effects (best step,
// plateau schedule, early stopping). If the evaluation fails, the checkpoint that is due is written without them
// before the error ends the run: it has an older evaluated_step. A run resumed from it evaluates first
// (evaluate_again()), so it continues as a run whose evaluation did not fail. All ranks learn of a failure on one of
// them, since the save needs collectives.

absl::Status TrainingRun::evaluate_step(bool save_due) {
  const detail::ProfileStage stage("evaluation");
  take_step([&] { step_.confirm(); });
  TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
  TRAINKIT_RETURN_IF_ERROR(finish_save());  // on_evaluation may look up the last checkpoint, as BestModel does
  const Clock::time_point start = begin_pause();
  absl::StatusOr<Metrics> metrics = validation_.evaluate(progress_.step);
  if (metrics.ok()) TRAINKIT_RETURN_IF_ERROR(log_gpu_memory());
  if (metrics.ok()) record_evaluation(*std::move(metrics), start);
  end_pause(start);
  if (metrics.ok() || !save_due) return metrics.status();
  absl::Status saved = save();
  if (saved.ok()) saved = finish_save();
  if (!saved.ok() && fit_.logger) fit_.logger->print("warning: " + error_line(saved));
  return metrics.status();
}

absl::Status TrainingRun::evaluate_again() {
  const bool failed = !options_.resume.empty() && !stop_.finished() && evaluation_due() && progress_.step > 0 &&
                      progress_.evaluated_step != progress_.step;
  return failed ? evaluate_step(/*save_due=*/false) : absl::OkStatus();
}

}  // namespace trainkit
