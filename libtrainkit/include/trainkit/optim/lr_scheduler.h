#pragma once
/// Applies a schedule to an optimizer.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "trainkit/core/state_dict.h"
#include "trainkit/optim/lr_schedule.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {

/// Lowers the learning rate when a metric stops improving. PyTorch's names and defaults.
struct PlateauOptions {
  /// Factor applied to the learning rate. In (0, 1).
  double factor = 0.1;
  /// Number of consecutive bad values that are allowed; the next one lowers the learning rate.
  int64_t patience = 10;
  /// Smallest change that counts as an improvement: relative (fraction of the best value) or absolute.
  double threshold = 1e-4;
  bool relative_threshold = true;
  /// Number of values ignored after the learning rate was lowered.
  int64_t cooldown = 0;
  /// Lower bound of the learning rate; changes smaller than `eps` are skipped.
  double min_lr = 0;
  double eps = 1e-8;
  /// True if a larger metric is better (accuracy); false if a smaller one is better (loss).
  bool maximize = false;
};

/// Sets an optimizer's learning rate to base * schedule.factor(steps applied), and lowers the base on a plateau.
///
///   LRScheduler scheduler(optimizer, std::make_shared<CosineAnnealingLR>(
///                                        CosineAnnealingLROptions{.total_steps = 1000}));
///   for (...) { ...; optimizer.step(); scheduler.step(); }
///
/// The base is the optimizer's learning rate when the scheduler is created. The position is the optimizer's count of
/// applied steps, so a step that a GradScaler skipped does not advance the schedule. If that count is on a GPU, the
/// factors are stored there as a table, and the device looks up the learning rate; only lr() reads from the device. The
/// optimizer must outlive the scheduler and must not be moved. One thread.
class LRScheduler {
 public:
  /// Throws c10::ValueError if options are out of range; the message names all of them.
  LRScheduler(Optimizer& optimizer, std::shared_ptr<const LRSchedule> schedule,
              std::optional<PlateauOptions> plateau = std::nullopt);

  /// Call after each optimizer step, including skipped steps.
  void step();

  /// Call with the new value of the metric after each evaluation. Throws c10::Error without PlateauOptions. A NaN
  /// counts as bad.
  /// @return True if the learning rate was lowered.
  bool step_metric(double metric);

  /// Learning rate of the next step, before the groups' multiples. Reads from the device if the step count is there.
  double lr() const;
  /// Learning rate that the factors multiply; lowered on each plateau.
  double base_lr() const { return base_lr_; }
  /// Replaces it, and sets the optimizer's learning rate. Does not synchronise.
  void set_base_lr(double base_lr);

  /// Extends the table to `steps` steps if the step count is on the device. Call it before a CUDA graph is captured,
  /// because a replay cannot extend the table. Beyond the end, the last factor is used.
  void reserve(int64_t steps);
  /// Number of steps in the table; 0 while the host counts. A captured step() reads the table of its capture: capture
  /// it again when this number changes.
  int64_t reserved_steps() const { return table_.defined() ? table_.numel() : 0; }

  /// State: "base_lr" and, with PlateauOptions, "best", "num_bad_epochs", "cooldown_counter" (PyTorch's names). The
  /// optimizer saves the position; the program provides the schedule and the options. Loading rejects missing values
  /// and values out of range (exit code 5), and sets the learning rate: load the optimizer first.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  void apply();
  bool is_better(double metric) const;

  Optimizer* optimizer_;
  std::shared_ptr<const LRSchedule> schedule_;
  std::optional<PlateauOptions> plateau_;
  double base_lr_;
  double best_;
  int64_t num_bad_epochs_ = 0;
  int64_t cooldown_counter_ = 0;

  /// On the device: factor(0), factor(1), ..., the index into this table, and base_lr_. Undefined while the host
  /// counts.
  at::Tensor table_;
  at::Tensor index_;
  at::Tensor device_base_lr_;
};

}  // namespace trainkit
