#pragma once
// Decides when a run ends. Internal to Trainer.

#include <chrono>

#include "train/records/skipped_steps.h"
#include "train/run/fit_context.h"
#include "train/run/host_requests.h"
#include "train/run/run_events.h"
#include "trainkit/train/trainer.h"

namespace trainkit {

/// Votes on stopping are signal numbers, or one of these. No stop signal has the number 1. The largest vote wins, so
/// those after non-finite values take precedence over signals, which persist until they are handled. See
/// Note [Stopping together].
constexpr int kTimeIsUp = 1;        ///< max_time is reached.
constexpr int kStopAsked = 999;     ///< Session::request_stop(), or an event.
constexpr int kRollBack = 1000;     ///< Non-finite values: roll back to the last checkpoint.
constexpr int kGiveUp = 1001;       ///< Too many of them.
constexpr int kEventFailed = 1002;  ///< An event returned an error.

/// The limits of a run, and the reason for its end. Keeps references to the arguments.
class StopPolicy {
 public:
  StopPolicy(const FitContext& run, const SkippedSteps& skipped, const HostRequests& host, const RunEvents& events)
      : options_(run.options),
        source_(run.source),
        progress_(run.progress),
        skipped_(skipped),
        host_(host),
        events_(events) {}

  /// Starts the time of max_time.
  void start() { start_ = std::chrono::steady_clock::now(); }

  /// Returns this rank's vote: a failed event, non-finite values, a request, a signal, kTimeIsUp; 0 to continue.
  int vote() const;
  /// Returns kRollBack or kGiveUp after non-finite values, else 0.
  int nonfinite_vote() const;

  /// Ends the run if the ranks have voted to stop.
  void check_vote(int vote);
  /// Ends the run at max_steps, at max_epochs, or after early_stopping evaluations without improvement.
  void check_steps();
  void check_epochs();
  void check_patience();
  /// Ends the run if its source has ended.
  void check_source();
  /// Ends the run here, whatever its limits.
  void end() { finish(ExitReason::kEnded); }

  bool finished() const { return finished_; }
  ExitReason reason() const { return reason_; }
  /// Whether a resumed run continues this one: a signal or a request ended it.
  bool is_interrupted() const { return reason_ == ExitReason::kSignal || reason_ == ExitReason::kStopped; }
  /// Signal that ended the run, else 0.
  int signal() const { return signal_; }
  bool has_all_steps() const { return options_.max_steps > 0 && progress_.step >= last_step(); }
  bool has_all_epochs() const;
  /// Returns whether the step was the last one.
  bool was_last_step() const { return finished_ || has_all_epochs(); }

 private:
  void finish(ExitReason reason);
  /// The limits count from the beginning of this call of fit.
  int64_t last_step() const { return progress_.first_step + options_.max_steps; }
  int64_t last_epoch() const { return progress_.first_epoch + options_.max_epochs; }

  const TrainerOptions& options_;
  const TrainingSource& source_;
  const RunProgress& progress_;
  const SkippedSteps& skipped_;
  const HostRequests& host_;
  const RunEvents& events_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool finished_ = false;
  ExitReason reason_ = ExitReason::kMaxEpochs;
  int signal_ = 0;
};

}  // namespace trainkit
