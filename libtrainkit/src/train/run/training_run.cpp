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
#include "train/run/host_changes.h"
#include "train/run/run_messages.h"
#include "train/run/step_losses.h"
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

std::string names_of(const std::vector<NamedState>& states) {
  std::string names;
  for (const NamedState& state : states) names += state.name + "\n";
  return names;
}

/// Compares settings and data of the ranks before the first collective. If they differed, rows and gradients would
/// not match, or one rank would finish before the others.
absl::Status compare_ranks(const FitContext& run, const Prefetcher* validation,
                           const std::vector<ValidationSet>& more) {
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
                                     {"eval_every", to_string(run.options.eval_every)},
                                     {"save_every", to_string(run.options.save_every)},
                                     {"early_stopping", std::to_string(run.options.early_stopping)},
                                     {"monitor", run.options.monitor},
                                     {"names of the state", names_of(run.others)}};
  for (const RunParts::Player& player : run.players) {
    if (run.has_players()) fields.push_back({"player", player.name});
  }
  run.source.append_fields(fields);
  if (validation) append_data_fields("validation", validation->dataset(), fields);
  for (const ValidationSet& set : more) append_data_fields("validation " + set.name, set.loader->dataset(), fields);
  return run.group->compare_digest(fields);
}

/// Lets the steps call on_gradients.
Trained with_events(Trained trained, RunEvents& events) {
  trained.on_gradients = events.gradient_reader();
  return trained;
}

}  // namespace

TrainingRun::TrainingRun(detail::ReplicaStrategy& devices, Trained trained, const TrainerOptions& options,
                         BatchSource* source, LossFunction loss, const FitOptions& fit, EarlierFits& earlier)
    : fit_(fit),
      events_(fit_, run_, host_),
      run_(devices, naming_step(with_events(std::move(trained), events_), run_.progress), options, source, fit_.state),
      loss_(naming_step(std::move(loss), "the loss function", run_.progress)),
      earlier_(earlier),
      log_(run_, fit.logger),
      saves_(run_, log_),
      steady_(run_),
      skipped_(most_skipped(options)),
      stop_(run_, skipped_, host_, events_),
      evaluations_(run_, fit_, loss_, log_, stop_, events_),
      profile_(options.output_dir,
               earlier.count > 0 && options.profile_step <= earlier.steps ? 0 : options.profile_step, devices.device(),
               run_.group) {
  run_.progress.fit = earlier.count;
  run_.progress.step = run_.progress.first_step = earlier.steps;
  const bool has_epoch_ended = run_.source.batches_per_epoch() > 0 && run_.source.at_epoch_end();
  run_.progress.first_epoch = run_.source.epoch() + (has_epoch_ended ? 1 : 0);
  run_.progress.rows = earlier.rows;
  run_.step.set_step(run_.progress.step);
}

absl::Status TrainingRun::begin() {
  run_.source.use_devices(run_.devices);
  TRAINKIT_RETURN_IF_ERROR(prepare());
  if (log_.logger()) log_.print(warnings_of_model(run_));
  stop_.start();
  log_.start();
  TRAINKIT_RETURN_IF_ERROR(events_.call("on_begin", [&](Events& events) { return events.on_begin(run_.first_step); }));
  if (!run_.group && host_.has_stop()) stop_.check_vote(kStopAsked);  // of on_begin
  if (evaluations_.is_missing()) TRAINKIT_RETURN_IF_ERROR(evaluate(/*save_due=*/false));
  publish();
  return absl::OkStatus();
}

absl::StatusOr<bool> TrainingRun::step() {
  if (!run_.source.source()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.session",
                      .problem = "the session has no source of batches",
                      .hint = "pass each batch: step(batch)"});
  }
  const int64_t before = run_.steps_taken;
  while (!stop_.finished() && run_.steps_taken == before) {
    if (run_.step.accumulated() == 0) TRAINKIT_RETURN_IF_ERROR(record_profile());
    TRAINKIT_ASSIGN_OR_RETURN(const std::optional<Batch> batch, run_.source.next());
    if (batch) {
      TRAINKIT_RETURN_IF_ERROR(accumulate(*batch));
      continue;
    }
    if (run_.step.accumulated() > 0) TRAINKIT_RETURN_IF_ERROR(complete_step());
    stop_.check_epochs();
    stop_.check_source();
    if (run_.source.has_epochs()) {
      TRAINKIT_RETURN_IF_ERROR(
          events_.call("on_epoch", [&](Events& events) { return events.on_epoch(run_.source.epoch()); }));
      if (!run_.group && host_.has_stop()) stop_.check_vote(kStopAsked);
    }
  }
  publish();
  return run_.steps_taken > before;
}

absl::StatusOr<bool> TrainingRun::step(const Batch& batch) {
  if (stop_.finished()) return false;
  if (run_.step.accumulated() == 0) TRAINKIT_RETURN_IF_ERROR(record_profile());
  run_.source.note(batch);
  TRAINKIT_RETURN_IF_ERROR(accumulate(batch));
  publish();
  return true;
}

absl::StatusOr<TrainerResult> TrainingRun::finish() {
  if (!stop_.finished() && run_.step.accumulated() > 0) TRAINKIT_RETURN_IF_ERROR(complete_step());
  stop_.end();
  result_.monitor = log_.stop(steady_.predicted(), steady_.real());
  TRAINKIT_RETURN_IF_ERROR(end());
  publish();
  return std::move(result_);
}

void TrainingRun::publish() {
  host_.publish({.step = run_.progress.step,
                 .epochs = run_.epochs(),
                 .loss = log_.last_logged_loss(),
                 .has_ended = stop_.finished()});
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
  TRAINKIT_RETURN_IF_ERROR(run_.source.check_has_batch());
  std::vector<double> asked_lrs;
  for (const RunParts::Player& player : run_.players) asked_lrs.push_back(player.optimizer.initial_lr());
  std::string differs;
  if (!options.resume.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(
        differs, resume_run(options.resume, options.output_dir, run_.parts(), run_.shape(), run_.progress));
  }
  TRAINKIT_RETURN_IF_ERROR(compare_ranks(run_, fit_.validation, fit_.validation_sets));
  TRAINKIT_RETURN_IF_ERROR(evaluations_.open());
  TRAINKIT_RETURN_IF_ERROR(saves_.open());
  if (fit_.open_logger) {
    TRAINKIT_ASSIGN_OR_RETURN(Logger* const opened, fit_.open_logger());
    log_.use(opened);
  }
  if (!options.resume.empty()) TRAINKIT_RETURN_IF_ERROR(continue_run(differs, asked_lrs));
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

absl::Status TrainingRun::continue_run(const std::string& differs, const std::vector<double>& asked_lrs) {
  if (!differs.empty()) log_.print("warning: " + differs);
  for (size_t i = 0; i < asked_lrs.size(); ++i) {
    const RunParts::Player& player = run_.players[i];
    if (run_.options.override_lr) {
      player.optimizer.set_lr(asked_lrs[i]);
      if (player.scheduler) player.scheduler->set_base_lr(asked_lrs[i]);
    }
    // Compared with the initial rate: a plateau may have lowered the other one.
    if (asked_lrs[i] == player.optimizer.initial_lr()) continue;
    const double kept = player.scheduler ? player.scheduler->base_lr() : player.optimizer.lr();
    log_.print(ignored_learning_rate(kept, asked_lrs[i]));
  }
  if (log_.logger()) TRAINKIT_RETURN_IF_ERROR(log_.logger()->rewind(run_.progress.step));
  saves_.set_last_step(run_.progress.step);
  run_.step.set_weight_unit(run_.progress.weight_unit);
  for (size_t i = 1; i < run_.players.size() && i <= run_.progress.player_units.size(); ++i) {
    run_.step.set_weight_unit(run_.progress.player_units[i - 1], i);
  }
  run_.step.set_split(run_.progress.split);
  continue_at_step();
  return absl::OkStatus();
}

void TrainingRun::continue_at_step() {
  apply_trainable(run_);
  earlier_.steps = run_.progress.step;
  run_.step.set_step(run_.progress.step);
  run_.step.synchronize();
}

absl::Status TrainingRun::accumulate(const Batch& batch) {
  events_.begin_batch();
  log_.add_batch(batch);
  if (saves_.is_on()) run_.progress.rows.add(batch.row_indices());  // only checkpoints contain them
  if (run_.group) vote();                                           // may be sent with the gradients
  steady_.begin_batch();
  {
    const detail::ProfileStage stage("forward and backward");
    take_step([&] { run_.has_players() ? run_.step.accumulate(batch) : run_.step.accumulate(batch, loss_); });
  }
  return run_.step.accumulated() == run_.options.grad_accum_steps ? complete_step() : absl::OkStatus();
}

absl::Status TrainingRun::complete_step() {
  vote();
  saves_.wait_for_copy();
  std::vector<double> lrs;  // the schedules' next ones replace them
  for (const RunParts::Player& player : run_.players) lrs.push_back(player.optimizer.lr());
  StepMetrics metrics;
  {
    const detail::ProfileStage stage("update");
    take_step([&] { metrics = run_.step.finish(); });
  }
  skipped_.add(run_.progress.step + 1, metrics);
  log_.print(skipped_.take(/*wait=*/false));
  earlier_.steps = ++run_.progress.step;
  ++run_.steps_taken;
  const auto on_step = [&](Events& events) { return events.on_step(run_.progress.step, metrics); };
  TRAINKIT_RETURN_IF_ERROR(events_.call("on_step", on_step));
  log_.add_step(std::move(metrics), std::move(lrs));
  run_.progress.weight_unit = run_.step.weight_unit();
  run_.progress.player_units.clear();
  for (size_t i = 1; i < run_.players.size(); ++i) run_.progress.player_units.push_back(run_.step.weight_unit(i));
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
  if (stop == kEventFailed) return events_.error();
  if (stop == kGiveUp) return skipped_.error();
  if (stop == kRollBack) return roll_back();
  TRAINKIT_RETURN_IF_ERROR(saves_.check());
  stop_.check_vote(stop);
  stop_.check_steps();
  if (run_.is_due(options.log_every)) TRAINKIT_RETURN_IF_ERROR(log_.log_step(saves_.background_seconds()));
  const bool save_due =
      saves_.is_on() && (run_.step.agreed_save() || run_.is_due(options.save_every) || run_.is_due(options.keep_every));
  if (evaluations_.is_due()) {
    TRAINKIT_RETURN_IF_ERROR(evaluate(save_due || (saves_.is_on() && stop_.was_last_step())));
  }
  return save_due && !stop_.was_last_step() ? save() : absl::OkStatus();
}

void TrainingRun::vote() {
  events_.check_draws();
  run_.step.request_stop(stop_.vote());
  const bool has_signal = run_.options.handle_signals && SignalWatch::take_save_request();
  if (host_.take_save() || has_signal || saves_.take_time()) run_.step.request_save();
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
  if (stop_.is_interrupted() && stop_.has_all_epochs() && !stop_.has_all_steps() && run_.source.at_epoch_end()) {
    TRAINKIT_RETURN_IF_ERROR(run_.source.next().status());
  }
  TRAINKIT_RETURN_IF_ERROR(end_profile());
  if (run_.progress.step > run_.first_step) TRAINKIT_RETURN_IF_ERROR(end_steps());
  // After the record of the step, as in any other step.
  const bool evaluates = evaluations_.has_last();
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
  const TrainingLog::RunTimes times = log_.times();
  result_.wall_seconds = times.wall_seconds;
  result_.effective_fraction = times.effective_fraction;
  result_.data_wait_fraction = times.data_wait_fraction;
  TRAINKIT_RETURN_IF_ERROR(events_.call("on_end", [&](Events& events) { return events.on_end(result_); }));
  return events_.failed();  // since the last vote
}

absl::Status TrainingRun::end_steps() {
  take_step([&] { run_.step.confirm(); });
  log_.print(skipped_.take(/*wait=*/true));
  if (skipped_.too_many()) return skipped_.error();
  // See Note [End of an interrupted run].
  const bool will_resume = stop_.is_interrupted() && !stop_.has_all_steps() && !stop_.has_all_epochs();
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
  absl::StatusOr<Metrics> metrics = evaluations_.run();
  const absl::Status evaluated = metrics.status();
  if (evaluated.ok()) result_.evaluation = *std::move(metrics);
  if (evaluated.ok() || !save_due) return evaluated;
  absl::Status saved = save();
  if (saved.ok()) saved = saves_.finish();
  if (!saved.ok()) log_.print("warning: " + error_line(saved));
  return evaluated;
}

absl::Status TrainingRun::save() {
  TRAINKIT_RETURN_IF_ERROR(events_.call("on_save", [&](Events& events) { return events.on_save(run_.progress.step); }));
  take_step([&] { run_.step.confirm(); });
  return saves_.save();
}

}  // namespace trainkit
