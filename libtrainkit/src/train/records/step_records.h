#pragma once
// Logs the training steps without waiting for the device. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/device/late_scalars.h"
#include "trainkit/logging/logger.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit {

/// Advises to check the rows of a step whose loss or gradients are not finite: the start of a hint, empty if they are
/// unknown. Takes StepMetrics::row_indices and rows.
std::string rows_to_check(const std::vector<int64_t>& row_indices, int64_t rows);

/// Learning rates of the groups in a step, computed from scalars once they are on the host.
struct LateRates {
  using Values = std::function<std::vector<double>(const double* arrived)>;
  /// Rates of a player, for values of their own in a record.
  struct OfPlayer {
    std::vector<std::string> names;
    size_t first = 0;  // of its scalars
    Values values;
  };

  void append(LateRates rates, std::vector<std::string> names);

  std::vector<at::Tensor> scalars = {};
  Values values = nullptr;
  std::vector<OfPlayer> players = {};
};

/// Returns those of the step that has just ended. @param host_lr the optimizer's rate before the step, for rates that
/// the host knows. @param scheduler may be null; it and the optimizer outlive the result.
LateRates rates_of_step(const Optimizer& optimizer, const LRScheduler* scheduler, const StepMetrics& metrics,
                        double host_lr);

/// Keeps the records of steps until the copies of their scalars have arrived, then logs them in order.
class StepRecords {
 public:
  /// @param logger nullptr logs nothing
  /// @param most_nonfinite number of consecutive records with a loss that is not finite that ends the run; 0 means
  /// unlimited
  StepRecords(Logger* logger, int64_t most_nonfinite) : logger_(logger), most_nonfinite_(most_nonfinite) {}

  /// Logs to `logger` from now on.
  void use(Logger* logger) { logger_ = logger; }

  /// Starts to read the loss, metrics and gradient norm of a step, and the scalars of its learning rates.
  void add(LogRecord record, const StepMetrics& metrics, LateRates rates);

  /// Loss of the last record that was logged; NaN before.
  double last_loss() const { return last_loss_; }

  /// Logs the records whose scalars have arrived; all of them with `wait`. Error: too many losses are not finite (exit
  /// code 9).
  absl::Status emit(bool wait);

 private:
  /// A record and its scalars: its first `named` values, then those of the learning rates.
  struct Pending {
    LogRecord record = {};
    size_t named = 0;
    LateScalars scalars = {};
    std::string cause = {};                 // StepMetrics::first_nonfinite
    std::vector<int64_t> row_indices = {};  // and row_indices
    int64_t rows = 0;
    LateRates rates = {};  // without the scalars
  };

  absl::Status check_finite(double loss, const Pending& pending);

  Logger* logger_;
  int64_t most_nonfinite_;
  int64_t nonfinite_ = 0;
  double last_loss_ = std::numeric_limits<double>::quiet_NaN();
  std::deque<Pending> pending_;
};

}  // namespace trainkit
