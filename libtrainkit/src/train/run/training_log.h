#pragma once
// The records, messages and monitor of a run. Internal to Trainer.

#include <absl/status/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/records/step_records.h"
#include "train/run/fit_context.h"
#include "trainkit/logging/logger.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {

/// Measures a run, and writes it to the logger if there is one. Evaluation and saves are pauses: they do not count in
/// the samples per second. Keeps a reference to `run`. Used by the training thread.
class TrainingLog {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param logger nullptr logs nothing
  TrainingLog(FitContext& run, Logger* logger);

  Logger* logger() const { return logger_; }
  void use(Logger* logger);
  /// Tells the logger the range of the run's steps, once run.first_step is known.
  void begin();
  /// Starts the clock and the monitor.
  void start();
  /// Ends the monitor; returns its report.
  MonitorReport stop(const DeviceMemory& predicted, const DeviceMemory& real);

  /// Prints lines; an empty line prints nothing.
  void print(const std::string& line);
  void print(const std::vector<std::string>& lines);
  /// Prints the memory of the GPUs of all ranks, each of which must call it.
  absl::Status print_gpu_memory();

  /// Notes the batch that is trained next.
  void add_batch(const Batch& batch);
  /// Notes a step that has ended, and the learning rates of the players before it.
  void add_step(StepMetrics metrics, std::vector<double> lrs);
  /// Advances the progress bar, and passes the monitor's report to the logger, at most every few seconds unless `now`.
  void tick(bool now, const DeviceMemory& predicted, const DeviceMemory& real);
  /// Starts to read the scalars of the last step; the record is logged when they are on the host.
  /// @param background_seconds BackgroundSaves::background_seconds
  absl::Status log_step(double background_seconds);
  /// Logs the records whose scalars have arrived; all of them with `wait`. Error: too many losses are not finite.
  absl::Status emit(bool wait) { return records_.emit(wait); }
  /// Logs an evaluation that took `seconds`.
  void log_evaluation(const Metrics& metrics, double seconds);
  /// Loss of the last record that was logged; NaN before.
  double last_logged_loss() const { return records_.last_loss(); }
  /// Loss of the last step, over all ranks. Waits for the device. Every rank calls it.
  double last_loss();

  /// Begins and ends a pause. `for_save`: the next record's save_seconds contain it.
  Clock::time_point pause();
  void resume(Clock::time_point start, bool for_save = false);
  /// Of the run so far, see TrainerResult.
  struct RunTimes {
    double wall_seconds = 0;
    double effective_fraction = 0;
    double data_wait_fraction = 0;
  };
  RunTimes times() const;

 private:
  MonitorSources monitor_sources();
  void average_metrics();
  void add_speed(LogRecord& record, double background_seconds);
  absl::Status add_gpus(LogRecord& record);

  /// The last step.
  struct LastStep {
    StepMetrics metrics = {};
    std::vector<double> lrs = {};  // of the players, before the groups' multiples, while the host knows them
    bool averaged = true;          // over the ranks
  };
  /// Since the last record.
  struct Interval {
    Clock::time_point start = {};
    int64_t rows = 0;
    double weight = 0;
    double save_seconds = 0;  // in which saves blocked training
  };

  FitContext& run_;
  Logger* logger_;
  StepRecords records_;
  LastStep last_;
  Interval interval_;
  Clock::time_point start_;
  Clock::time_point reported_;     // the monitor, to the logger
  double pause_seconds_ = 0;       // of the run
  double background_seconds_ = 0;  // in which saves were written up to the last record
  PrefetcherStats first_stats_;
  bool has_begun_ = false;
  std::optional<Monitor> monitor_;  // its thread reads run_.step
};

}  // namespace trainkit
