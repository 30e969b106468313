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

/// Lowers the learning rate when a metric stops getting better. PyTorch's names and defaults.
struct PlateauOptions {
  /// What the learning rate is multiplied by. In (0, 1).
  double factor = 0.1;
  /// Bad values in a row that are allowed; the next one lowers the learning rate.
  int64_t patience = 10;
  /// How much better counts as better: relative (a share of the best) or absolute.
  double threshold = 1e-4;
  bool relative_threshold = true;
  /// Values not looked at after the learning rate was lowered.
  int64_t cooldown = 0;
  /// The learning rate is never lowered below this; a change smaller than `eps` is left out.
  double min_lr = 0;
  double eps = 1e-8;
  /// The metric is to grow (accuracy) and not to shrink (loss).
  bool maximize = false;
};

/// Sets an optimizer's learning rate to base * schedule.factor(steps applied), and lowers the base on a plateau.
///
///   LRScheduler scheduler(optimizer, std::make_shared<CosineAnnealingLR>(CosineAnnealingLROptions{.total_steps =
///   1000})); for (...) { ...; optimizer.step(); scheduler.step(); }
///
/// The base is the optimizer's learning rate when the scheduler is made. The position is the optimizer's own count of
/// applied steps, so a step that a GradScaler skipped does not move the schedule. Where that count is on a GPU, the
/// factors lie there as a table and the learning rate is looked up on the device: no call but lr() reads from it. The
/// optimizer must outlive the scheduler and stay where it is. One thread.
class LRScheduler {
 public:
  /// Options out of range are errors (c10::ValueError); all are named at once.
  LRScheduler(Optimizer& optimizer, std::shared_ptr<const LRSchedule> schedule,
              std::optional<PlateauOptions> plateau = std::nullopt);

  /// After each optimizer step (or skipped step).
  void step();

  /// A new value of the metric, after each evaluation. An error (c10::Error) without PlateauOptions; a NaN counts as
  /// bad.
  /// @return Whether the learning rate was lowered.
  bool step_metric(double metric);

  /// The learning rate of the next step, before the groups' multiples. Reads from the device if the count is there.
  double lr() const;
  /// The learning rate that the factors multiply: lower after each plateau.
  double base_lr() const { return base_lr_; }

  /// Makes the table long enough for `steps` steps, where the count is on the device: before a CUDA graph is captured,
  /// whose replays cannot make it longer. Beyond the end the last factor stays.
  void reserve(int64_t steps);
  /// Steps that the table has factors for. A captured step() reads the table that was there: capture it again when this
  /// number changes. 0 while the host counts.
  int64_t reserved_steps() const { return table_.defined() ? table_.numel() : 0; }

  /// "base_lr" and, with PlateauOptions, "best", "num_bad_epochs", "cooldown_counter" (PyTorch's names). The position
  /// is the optimizer's, the schedule and the options are the program's. Loading refuses (exit code 5) what is missing
  /// or out of range, and sets the learning rate: load the optimizer first.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  void apply();
  void set_base_lr(double base_lr);
  bool is_better(double metric) const;

  Optimizer* optimizer_;
  std::shared_ptr<const LRSchedule> schedule_;
  std::optional<PlateauOptions> plateau_;
  double base_lr_;
  double best_;
  int64_t num_bad_epochs_ = 0;
  int64_t cooldown_counter_ = 0;

  /// On the device: factor(0), factor(1), ..., the place in it, and base_lr_. Undefined while the host counts.
  at::Tensor table_;
  at::Tensor index_;
  at::Tensor device_base_lr_;
};

}  // namespace trainkit
