#include "train/run/training_run.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/base/user_exception.h"
#include "core/tensors/recorded.h"
#include "train/agreement/steps_in_flight.h"
#include "train/run/run_messages.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

/// Makes the error of a step that runs out of memory with one row at a time.
absl::Status out_of_memory(const absl::Status& status) {
  return to_status(
      {.exit_code = ExitCode::kOutOfMemory,
       .id = "memory.exhausted",
       .problem = "a step does not fit into memory, even with one row at a time: " + std::string(status.message()),
       .hint = "use a smaller model or a device with more memory"});
}

int64_t most_skipped(const TrainerOptions& options) {
  const bool fails = options.on_nonfinite == OnNonfinite::kFail && options.precision != Precision::kFp16;
  return fails ? 1 : options.max_nonfinite;
}

absl::StatusOr<std::optional<Batch>> next_batch(Prefetcher& loader) {
  const detail::ProfileStage stage("wait for a batch");
  return loader.next();
}

/// Makes loaders that were created without a device copy their batches to it from now on.
void use_devices(const DeviceReplicator& replicas, std::initializer_list<Prefetcher*> loaders) {
  if (!replicas.device().is_cuda()) return;
  for (Prefetcher* loader : loaders) {
    if (loader && loader->options().device.is_cpu()) loader->use_devices(detail::devices_of(replicas));
  }
}

/// Compares settings and data of the ranks before the first collective. If they differed, rows and gradients would
/// not match, or one rank would finish before the others.
absl::Status compare_ranks(const FitContext& run, const Prefetcher* validation) {
  if (!run.group) return absl::OkStatus();
  // The checkpoint first: its missing or older folder on one machine also changes other fields.
  std::vector<DigestField> fields = {{"step of the checkpoint", std::to_string(run.progress.step)},
                                     {"max_epochs", std::to_string(run.options.max_epochs)},
                                     {"max_steps", std::to_string(run.options.max_steps)},
                                     {"precision", std::to_string(static_cast<int>(run.options.precision))},
                                     {"grad_accum_steps", std::to_string(run.options.grad_accum_steps)},
                                     {"grad_clip", std::to_string(run.options.grad_clip)},
                                     {"ema_decay", std::to_string(run.options.ema_decay)},
                                     {"log_every", std::to_string(run.options.log_every)},
                                     {"eval_every", std::to_string(run.options.eval_every)},
                                     {"save_every", std::to_string(run.options.save_every)},
                                     {"early_stopping", std::to_string(run.options.early_stopping)},
                                     {"monitor", run.options.monitor},
                                     {"batch_size", std::to_string(run.loader.options().batch_size)},
                                     {"batches per epoch", std::to_string(run.loader.batches_per_epoch())},
                                     {"seed of the order", std::to_string(run.loader.sampler().seed())}};
  append_data_fields("training", run.loader.dataset(), fields);
  if (validation) append_data_fields("validation", validation->dataset(), fields);
  return run.group->compare_digest(fields);
}

}  // namespace

TrainingRun::TrainingRun(detail::ReplicaStrategy& devices, Optimizer& optimizer, const TrainerOptions& options,
                         Prefetcher& loader, LossFunction loss, const FitOptions& fit, EarlierFits& earlier)
    : run_(devices, optimizer, options, loader),
      loss_(with_step(std::move(loss), "the loss function")),
      fit_(fit),
      earlier_(earlier),
      log_(run_, fit.logger),
      saves_(run_, log_),
      steady_(run_),
      skipped_(most_skipped(options)),
      stop_(options, loader, run_.progress, skipped_),
      validation_(devices, run_.step, options, fit_, fit_.validation_loss ? fit_.validation_loss : loss_),
      profile_(options.output_dir,
               earlier.count > 0 && options.profile_step <= earlier.steps ? 0 : options.profile_step, devices.device(),
               run_.group) {
  if (fit_.validation_loss) {
    fit_.validation_loss = with_step(std::move(fit_.validation_loss), "the loss function of the evaluation");
  }
  run_.progress.fit = earlier.count;
  run_.progress.step = run_.progress.first_step = earlier.steps;
  run_.progress.first_epoch = loader.epoch() + (loader.position() > 0 && loader.at_epoch_end() ? 1 : 0);
  run_.progress.rows = earlier.rows;
  run_.step.set_step(run_.progress.step);
}

absl::StatusOr<TrainerResult> TrainingRun::operator()() {
  std::optional<SignalWatch> signals;
  if (run_.options.handle_signals) signals.emplace();
  use_devices(run_.devices, {&run_.loader, fit_.validation});
  TRAINKIT_RETURN_IF_ERROR(prepare());
  if (log_.logger()) log_.print(warnings_of_model(run_.devices, run_.optimizer));
  stop_.start();
  log_.start();
  TRAINKIT_RETURN_IF_ERROR(evaluate_again());
  while (!stop_.finished()) {
    if (run_.step.accumulated() == 0) TRAINKIT_RETURN_IF_ERROR(record_profile());
    TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, next_batch(run_.loader));
    if (batch) {
      TRAINKIT_RETURN_IF_ERROR(accumulate(*batch));
    } else {
      if (run_.step.accumulated() > 0) TRAINKIT_RETURN_IF_ERROR(complete_step());
      stop_.check_epochs();
    }
  }
  result_.monitor = log_.stop(steady_.predicted(), steady_.real());
  TRAINKIT_RETURN_IF_ERROR(end());
  return std::move(result_);
}

LossFunction TrainingRun::with_step(LossFunction loss, const char* who) const {
  return [this, who, loss = std::move(loss)](torch::nn::Module& model, const Batch& batch) {
    try {
      return loss(model, batch);
    } catch (...) {
      const int64_t step = run_.progress.step + (c10::GradMode::is_enabled() ? 1 : 0);  // else in an evaluation
      throw absl::BadStatusOrAccess(detail::status_from_user_exception("step " + std::to_string(step), who));
    }
  };
}

void TrainingRun::take_step(c10::function_ref<void()> call) {
  const auto fail = [](const absl::Status& status) {
    const bool lacks_memory = absl::IsResourceExhausted(status) && !error_of(status);  // else of another rank
    throw absl::BadStatusOrAccess(lacks_memory ? out_of_memory(status) : status);
  };
  try {
    call();
  } catch (const c10::Error&) {
    fail(status_from_current_exception());
  } catch (const std::exception&) {  // of a hook or an autograd function
    const std::string step = "step " + std::to_string(run_.progress.step + 1);
    fail(detail::status_from_user_exception(step, "the backward pass"));
  }
}

absl::Status TrainingRun::prepare() {
  const TrainerOptions& options = run_.options;
  TRAINKIT_RETURN_IF_ERROR(check_has_batch(run_.loader));
  const double asked_lr = run_.optimizer.initial_lr();
  std::string differs;
  if (!options.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(
        differs, resume_run(options.resume, options.output_dir, run_.parts(), run_.shape(), run_.progress));
  }
  TRAINKIT_RETURN_IF_ERROR(compare_ranks(run_, fit_.validation));
  TRAINKIT_RETURN_IF_ERROR(saves_.open());
  if (fit_.open_logger) {
    TRAINKIT_ASSIGN_OR_RETURN(Logger* const opened, fit_.open_logger());
    log_.use(opened);
  }
  if (!options.resume.empty()) TRAINKIT_RETURN_IF_ERROR(continue_run(differs, asked_lr));
  run_.reserve_schedule();
  TRAINKIT_RETURN_IF_ERROR(log_.print_gpu_memory());
  run_.first_step = run_.progress.step;
  log_.begin();
  log_.print(without_graphs(run_));
  // Several ranks vote after a step.
  if (!run_.group && options.handle_signals) stop_.check_vote(SignalWatch::stop_signal());
  stop_.check_steps();
  stop_.check_epochs();
  stop_.check_patience();
  return absl::OkStatus();
}

absl::Status TrainingRun::continue_run(const std::string& differs, double asked_lr) {
  if (!differs.empty()) log_.print("warning: " + differs);
  if (run_.options.override_lr) {
    run_.optimizer.set_lr(asked_lr);
    if (run_.scheduler) run_.scheduler->set_base_lr(asked_lr);
  }
  // Compared with the initial rate: a plateau may have lowered the other one.
  if (asked_lr != run_.optimizer.initial_lr()) {
    const double kept = run_.scheduler ? run_.scheduler->base_lr() : run_.optimizer.lr();
    log_.print(ignored_learning_rate(kept, asked_lr));
  }
  if (log_.logger()) TRAINKIT_RETURN_IF_ERROR(log_.logger()->rewind(run_.progress.step));
  saves_.set_last_step(run_.progress.step);
  run_.step.set_weight_unit(run_.progress.weight_unit);
  run_.step.set_split(run_.progress.split);
  continue_at_step();
  return absl::OkStatus();
}

void TrainingRun::continue_at_step() {
  earlier_.steps = run_.progress.step;
  run_.step.set_step(run_.progress.step);
  run_.step.synchronize();
}

absl::Status TrainingRun::accumulate(const Batch& batch) {
  log_.add_batch(batch);
  if (saves_.is_on()) run_.progress.rows.add(batch.row_indices());  // only checkpoints contain them
  if (run_.group) vote();                                           // may be sent with the gradients
  steady_.begin_batch();
  {
    const detail::ProfileStage stage("forward and backward");
    take_step([&] { run_.step.accumulate(batch, loss_); });
  }
  return run_.step.accumulated() == run_.options.grad_accum_steps ? complete_step() : absl::OkStatus();
}

absl::Status TrainingRun::complete_step() {
  vote();
  saves_.wait_for_copy();
  const double lr = run_.optimizer.lr();  // the schedule's next one replaces it
  StepMetrics metrics;
  {
    const detail::ProfileStage stage("update");
    take_step([&] { metrics = run_.step.finish(); });
  }
  skipped_.add(run_.progress.step + 1, metrics);
  log_.print(skipped_.take(/*wait=*/false));
  log_.add_step(std::move(metrics), lr);
  earlier_.steps = ++run_.progress.step;
  run_.progress.weight_unit = run_.step.weight_unit();
  const bool measured = steady_.end_step();
  if (measured) log_.print(steady_.memory_line());
  if (run_.step.split() != run_.progress.split) TRAINKIT_RETURN_IF_ERROR(log_split());
  log_.print(steady_.graph_lines());
  log_.tick(measured, steady_.predicted(), steady_.real());
  return after_step();
}

absl::Status TrainingRun::after_step() {
  const TrainerOptions& options = run_.options;
  const int stop = agreed_stop();
  if (stop == kGiveUp) return skipped_.error();
  if (stop == kRollBack) return roll_back();
  TRAINKIT_RETURN_IF_ERROR(saves_.check());
  stop_.check_vote(stop);
  stop_.check_steps();
  const auto is_due = [step = run_.progress.step](int64_t every) { return every > 0 && step % every == 0; };
  if (is_due(options.log_every)) TRAINKIT_RETURN_IF_ERROR(log_.log_step(saves_.background_seconds()));
  const bool save_due =
      saves_.is_on() && (run_.step.agreed_save() || is_due(options.save_every) || is_due(options.keep_every));
  if (evaluation_due()) {
    TRAINKIT_RETURN_IF_ERROR(evaluate(save_due || (saves_.is_on() && stop_.was_last_step())));
  }
  return save_due && !stop_.was_last_step() ? save() : absl::OkStatus();
}

void TrainingRun::vote() {
  run_.step.request_stop(stop_.vote());
  if (run_.options.handle_signals && SignalWatch::take_save_request()) run_.step.request_save();
}

int TrainingRun::agreed_stop() const {
  // On the CPU non-finite values are known immediately and are the same on all ranks; on devices the ranks vote.
  if (!run_.group) return stop_.vote();
  const int agreed = run_.step.agreed_stop();
  return run_.devices.device().is_cpu() ? std::max(agreed, stop_.nonfinite_vote()) : agreed;
}

absl::Status TrainingRun::log_split() {
  run_.progress.split = run_.step.split();
  TRAINKIT_RETURN_IF_ERROR(log_.print_gpu_memory());
  log_.print(split_messages(run_));
  return absl::OkStatus();
}

absl::Status TrainingRun::roll_back() {
  skipped_.reset_consecutive();
  TRAINKIT_RETURN_IF_ERROR(saves_.finish());
  if (saves_.last_step() < 0) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(log_.emit(/*wait=*/true));
  const int64_t from = run_.progress.step;
  run_.step.confirm();
  TRAINKIT_RETURN_IF_ERROR(roll_back_run(run_.options.output_dir, run_.parts(), run_.progress));
  const int64_t to = run_.progress.step;
  rollbacks_ = {.count = rollbacks_.to == to ? rollbacks_.count + 1 : 1, .to = to};
  if (rollbacks_.count >= run_.options.max_nonfinite) return skipped_.error();
  continue_at_step();
  log_.print(
      fmt::format("rolled back from step {} to the weights of step {}; continuing with the next rows", from, to));
  return log_.logger() ? log_.logger()->rewind(to) : absl::OkStatus();
}

// Note [End of an interrupted run]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A run that a signal stops and that is resumed later must produce the records and bits of an uninterrupted run.
// Therefore, after a signal:
// - the last step gets no extra log record and no evaluation, which the uninterrupted run would not have there;
// - if the signal arrived in the last step of the last epoch, the loader is advanced past the end of the epoch, so
//   that the saved position is that of a finished run;
// - the final evaluation of a finished run is left to the resumed run, which learns from
//   progress.evaluated_step that it is missing.
// The order is that of every other step: log record, evaluation, checkpoint.

absl::Status TrainingRun::end() {
  // See Note [End of an interrupted run].
  if (stop_.reason() == ExitReason::kSignal && stop_.has_all_epochs() && !stop_.has_all_steps() &&
      run_.loader.at_epoch_end()) {
    TRAINKIT_RETURN_IF_ERROR(run_.loader.next().status());
  }
  TRAINKIT_RETURN_IF_ERROR(end_profile());
  if (run_.progress.step > run_.first_step) TRAINKIT_RETURN_IF_ERROR(end_steps());
  // After the record of the step, as in any other step.
  const bool evaluates =
      fit_.validation && stop_.reason() != ExitReason::kSignal && run_.progress.evaluated_step != run_.progress.step;
  if (evaluates) TRAINKIT_RETURN_IF_ERROR(evaluate(saves_.is_on()));
  TRAINKIT_RETURN_IF_ERROR(saves_.finish());
  if (saves_.is_on() && (evaluates || saves_.last_step() != run_.progress.step)) TRAINKIT_RETURN_IF_ERROR(save());
  TRAINKIT_RETURN_IF_ERROR(saves_.finish());
  run_.step.swap_averages();  // fit() leaves the averages in the model
  if (log_.logger()) TRAINKIT_RETURN_IF_ERROR(log_.logger()->flush());
  ++earlier_.count;
  earlier_.rows = run_.progress.rows;
  const RunProgress& progress = run_.progress;
  result_.reason = stop_.reason();
  result_.signal = stop_.signal();
  result_.steps = progress.step;
  result_.steps_run = progress.step - run_.first_step;
  result_.epochs = run_.epochs();
  result_.graph_steps = run_.step.graph_steps();
  result_.split = run_.step.split();
  result_.skipped_steps = skipped_.total();
  result_.best_evaluation = progress.best;
  result_.best_step = progress.best_step;
  result_.predicted_memory_bytes = steady_.predicted().allocated_bytes;
  result_.predicted_reserved_bytes = steady_.predicted().reserved_bytes;
  result_.real_memory_bytes = steady_.real().allocated_bytes;
  result_.real_reserved_bytes = steady_.real().reserved_bytes;
  result_.wall_seconds = log_.wall_seconds();
  result_.effective_fraction = log_.effective_fraction();
  result_.data_wait_fraction = log_.data_wait_fraction();
  return absl::OkStatus();
}

absl::Status TrainingRun::end_steps() {
  take_step([&] { run_.step.confirm(); });
  log_.print(skipped_.take(/*wait=*/true));
  if (skipped_.too_many()) return skipped_.error();
  // See Note [End of an interrupted run].
  const bool will_resume = stop_.reason() == ExitReason::kSignal && !stop_.has_all_steps() && !stop_.has_all_epochs();
  const bool due = run_.options.log_every > 0 && run_.progress.step % run_.options.log_every != 0;
  if (due && !will_resume) TRAINKIT_RETURN_IF_ERROR(log_.log_step(saves_.background_seconds()));
  TRAINKIT_RETURN_IF_ERROR(log_.emit(/*wait=*/true));
  result_.loss = log_.last_loss();
  return absl::OkStatus();
}

absl::Status TrainingRun::record_profile() {
  return profile_.begin_step(run_.progress.step + 1) ? end_profile() : absl::OkStatus();
}

absl::Status TrainingRun::end_profile() {
  if (profile_.is_recording()) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string line, profile_.write(run_.progress.step));
    log_.print(line);
  } else if (profile_.is_waiting()) {
    log_.print(fmt::format("warning: no profile: the run ended before step {}", run_.options.profile_step));
  }
  return absl::OkStatus();
}

bool TrainingRun::evaluation_due() const {
  return fit_.validation && run_.options.eval_every > 0 && run_.progress.step % run_.options.eval_every == 0;
}

// Note [Failed evaluation]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A checkpoint is written after the evaluation of its step, because it contains the evaluation's effects (best step,
// plateau schedule, early stopping). If the evaluation fails, the checkpoint that is due is written without them
// before the error ends the run: it has an older evaluated_step. A run resumed from it evaluates first
// (evaluate_again()), so it continues as a run whose evaluation did not fail. All ranks learn of a failure on one of
// them, since the save needs collectives.

absl::Status TrainingRun::evaluate(bool save_due) {
  const detail::ProfileStage stage("evaluation");
  take_step([&] { run_.step.confirm(); });
  TRAINKIT_RETURN_IF_ERROR(log_.emit(/*wait=*/true));
  TRAINKIT_RETURN_IF_ERROR(saves_.finish());  // on_evaluation may look up the last checkpoint, as BestModel does
  const TrainingLog::Clock::time_point start = log_.pause();
  absl::StatusOr<Metrics> metrics = validation_.evaluate(run_.progress.step);
  absl::Status evaluated = metrics.status();
  if (evaluated.ok()) {
    TRAINKIT_RETURN_IF_ERROR(log_.print_gpu_memory());
    note_evaluation(*metrics);
    log_.log_evaluation(*metrics, std::chrono::duration<double>(TrainingLog::Clock::now() - start).count());
    result_.evaluation = *std::move(metrics);
  }
  log_.resume(start);
  if (evaluated.ok() || !save_due) return evaluated;
  absl::Status saved = save();
  if (saved.ok()) saved = saves_.finish();
  if (!saved.ok()) log_.print("warning: " + error_line(saved));
  return evaluated;
}

absl::Status TrainingRun::evaluate_again() {
  const bool failed = !run_.options.resume.empty() && !stop_.finished() && evaluation_due() && run_.progress.step > 0 &&
                      run_.progress.evaluated_step != run_.progress.step;
  return failed ? evaluate(/*save_due=*/false) : absl::OkStatus();
}

void TrainingRun::note_evaluation(const Metrics& metrics) {
  RunProgress& progress = run_.progress;
  const TrainerOptions& options = run_.options;
  progress.evaluated_step = progress.step;
  const double value = metrics.at(options.monitor);
  const auto best = progress.best.find(options.monitor);
  const bool none_yet = best == progress.best.end();
  // NaN is no improvement, and every number is one over a first evaluation of NaN.
  const bool improved =
      !std::isnan(value) && (none_yet || std::isnan(best->second) ||
                             (options.monitor_higher_is_better ? value > best->second : value < best->second));
  if (improved || none_yet) {
    progress.best = metrics;
    progress.best_step = progress.step;
  }
  progress.bad_evaluations = improved ? 0 : progress.bad_evaluations + 1;
  if (options.plateau) run_.scheduler->step_metric(value);
  stop_.check_patience();
}

absl::Status TrainingRun::save() {
  take_step([&] { run_.step.confirm(); });
  return saves_.save();
}

}  // namespace trainkit
