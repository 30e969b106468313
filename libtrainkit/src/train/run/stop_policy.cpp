#include "train/run/stop_policy.h"

#include "trainkit/train/trainer.h"

namespace trainkit {

// Note [Stopping together]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// All ranks must run the same number of steps, or the others wait in a collective for a rank that has ended. A signal,
// the time limit or non-finite values are seen by one rank first. Each rank therefore votes in every step
// (TrainStep::vote), and all act on the largest vote after that step. A vote may leave before the step ends, together
// with the gradients, so a later signal counts for the next step. Limits that all ranks compute alike (steps, epochs,
// early stopping) need no vote.

int StopPolicy::vote() const {
  if (events_.has_failed()) return kEventFailed;
  if (const int nonfinite = nonfinite_vote()) return nonfinite;
  if (host_.has_stop()) return kStopAsked;
  const int number = options_.handle_signals ? SignalWatch::stop_signal() : 0;
  const bool late = options_.max_time.count() > 0 && std::chrono::steady_clock::now() - start_ >= options_.max_time;
  return number != 0 ? number : late ? kTimeIsUp : 0;
}

int StopPolicy::nonfinite_vote() const {
  if (skipped_.too_many()) return kGiveUp;
  return options_.on_nonfinite == OnNonfinite::kRollback && skipped_.skipped_last() ? kRollBack : 0;
}

void StopPolicy::check_vote(int vote) {
  if (vote == 0 || finished_) return;
  if (vote == kTimeIsUp) return finish(ExitReason::kMaxTime);
  if (vote == kStopAsked) return finish(ExitReason::kStopped);
  signal_ = vote;
  finish(ExitReason::kSignal);
}

void StopPolicy::check_steps() {
  if (has_all_steps()) finish(ExitReason::kMaxSteps);
}

void StopPolicy::check_epochs() {
  if (options_.max_epochs > 0 && source_.has_epochs() && source_.epoch() >= last_epoch())
    finish(ExitReason::kMaxEpochs);
}

void StopPolicy::check_patience() {
  const bool lost = options_.early_stopping > 0 && progress_.bad_evaluations >= options_.early_stopping;
  if (lost) finish(ExitReason::kEarlyStopping);
}

void StopPolicy::check_source() {
  if (source_.has_ended()) finish(ExitReason::kEndOfData);
}

bool StopPolicy::has_all_epochs() const {
  const int64_t epochs = source_.epoch() + (source_.at_epoch_end() ? 1 : 0);
  return options_.max_epochs > 0 && source_.has_epochs() && epochs >= last_epoch();
}

/// Ends the run; the first reason counts.
void StopPolicy::finish(ExitReason reason) {
  if (finished_) return;
  finished_ = true;
  reason_ = reason;
}

}  // namespace trainkit
