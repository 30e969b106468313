#pragma once
/// Learning-rate schedules as pure functions of the step count, and the scheduler that applies one to an optimizer.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/state_dict.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit {

// ---- Learning-rate schedules as pure functions of the step count.

/// Maps the number of applied optimizer steps to a factor of the learning rate.
///
/// To write your own schedule, derive from this class and override factor(); see examples/custom_schedule.cpp. factor()
/// must be a pure function: it is called for any step, in any order, from any thread and repeatedly.
class LRSchedule {
 public:
  virtual ~LRSchedule() = default;
  /// Returns the factor for the next step after `step` applied steps: factor(0) is for the first. Finite and >= 0.
  virtual double factor(int64_t step) const = 0;
};

// Each function below throws c10::ValueError if arguments are out of range; the message names all of them. Beyond its
// end a schedule stays at its last factor. Arguments have PyTorch's names, with two exceptions: total_steps is T_max
// (cosine_annealing_lr) or total_iters (linear_lr) in PyTorch, and min_factor is eta_min divided by the learning rate.

/// Returns 1 for every step.
std::shared_ptr<const LRSchedule> constant_lr();

/// Changes linearly from start_factor at the first step to end_factor at total_steps. By default it falls from 1 to 0;
/// PyTorch's defaults rise from 1/3 to 1.
/// Source: torch.optim.lr_scheduler.LinearLR.
std::shared_ptr<const LRSchedule> linear_lr(int64_t total_steps, double start_factor = 1.0, double end_factor = 0.0);

/// Computes min + (1 - min) (1 + cos(pi step / total)) / 2, then stays at min (PyTorch's schedule rises again).
/// Source: Loshchilov and Hutter, "SGDR"; torch.optim.lr_scheduler.CosineAnnealingLR.
std::shared_ptr<const LRSchedule> cosine_annealing_lr(int64_t total_steps, double min_factor = 0.0);

/// Repeats the half cosine wave: t_0 steps at first, each following period t_mult times longer.
/// Source: "SGDR"; torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.
std::shared_ptr<const LRSchedule> cosine_annealing_warm_restarts(int64_t t_0, int64_t t_mult = 1,
                                                                 double min_factor = 0.0);

/// Computes gamma^floor(step / step_size). Source: torch.optim.lr_scheduler.StepLR.
std::shared_ptr<const LRSchedule> step_lr(int64_t step_size, double gamma = 0.1);

/// Multiplies by gamma at each milestone, a number of steps; ascending, twice the same for gamma^2.
/// Source: torch.optim.lr_scheduler.MultiStepLR.
std::shared_ptr<const LRSchedule> multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);

/// Computes gamma^step. Source: torch.optim.lr_scheduler.ExponentialLR.
std::shared_ptr<const LRSchedule> exponential_lr(double gamma);

/// Computes min + (1 - min) (1 - step / total)^power, then stays at min (0 in PyTorch).
/// Source: torch.optim.lr_scheduler.PolynomialLR.
std::shared_ptr<const LRSchedule> polynomial_lr(int64_t total_steps, double power = 1.0, double min_factor = 0.0);

struct OneCycleLROptions {
  int64_t total_steps = 2;
  /// Fraction of the steps in which the learning rate rises.
  double pct_start = 0.3;
  /// The first factor is 1 / div_factor; the last one is the first divided by final_div_factor.
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  /// Linear instead of cosine annealing.
  bool linear = false;
  /// Fall as fast as the rise, then continue to the last factor.
  bool three_phase = false;
};

/// Rises from 1 / div_factor to 1 (the optimizer's learning rate is PyTorch's max_lr), falls to the last factor and
/// stays there. With pct_start * total_steps == 1, where PyTorch divides by zero, it starts at 1. Momentum is not
/// cycled. Source: Smith and Topin, "Super-convergence"; torch.optim.lr_scheduler.OneCycleLR.
std::shared_ptr<const LRSchedule> one_cycle_lr(const OneCycleLROptions& options);

/// Rises linearly from start_factor to 1 over warmup_steps, then runs `schedule` from its start. start_factor is by
/// default 1 / (warmup_steps + 1), so that no step is wasted at 0 (nanoGPT's rule).
/// Source: torch.optim.lr_scheduler.SequentialLR of a LinearLR and another schedule.
std::shared_ptr<const LRSchedule> warmup_lr(int64_t warmup_steps, std::shared_ptr<const LRSchedule> schedule,
                                            std::optional<double> start_factor = std::nullopt);

/// Options of a schedule by name, as given on a command line.
struct ScheduleOptions {
  /// constant, linear, cosine, cosine_restarts, step, multi_step, exponential, polynomial or one_cycle. (For plateau,
  /// pass PlateauOptions to LRScheduler.)
  std::string name = "constant";
  /// Length of the run in steps, including warm-up. Not needed for constant and multi_step, nor for step and
  /// exponential with period_steps.
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  /// End value of linear, cosine, cosine_restarts and polynomial: the lowest learning rate divided by the highest.
  double min_factor = 0.0;
  /// cosine_restarts: steps of the first period (0 means a quarter of the run) and growth of the period.
  /// step and exponential: steps of the period (0 means a third of the run), in which the rate falls to gamma times its
  /// value, at once or evenly.
  int64_t period_steps = 0;
  int64_t period_growth = 1;
  double gamma = 0.1;
  /// multi_step: the steps at which the rate falls to gamma times its value, counted from the end of the warm-up.
  std::vector<int64_t> milestones = {};
  /// polynomial.
  double power = 1.0;
};

/// Names that create_schedule accepts.
const std::vector<std::string>& schedule_names();

/// Creates the schedule with its warm-up. Returns kInvalidArgument (exit code 3), which names an unknown schedule and
/// the nearest name, or every option out of range.
absl::StatusOr<std::shared_ptr<const LRSchedule>> create_schedule(const ScheduleOptions& options);

// ---- Applies a schedule to an optimizer.

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
///   LRScheduler scheduler(optimizer, cosine_annealing_lr(1000));
///   for (...) { ...; optimizer.step(); scheduler.step(); }
///
/// The base is Optimizer::initial_lr(), so a second scheduler of an optimizer does not multiply what the first one
/// left. The position is the optimizer's count of applied steps, so a step that a GradScaler skipped does not advance
/// the schedule; for a second scheduler, the steps since its creation. Only the last scheduler created may step. If the
/// count is on a GPU, the factors are stored there as a table, and the device looks up the learning rate; only lr() and
/// the creation of a second scheduler read from the device. The optimizer must outlive the scheduler and must not be
/// moved. One thread.
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
  /// Learning rate of the step after `applied_steps` steps of the optimizer, with the current base. Reads nothing from
  /// the device.
  double lr_after(int64_t applied_steps) const;
  /// Learning rate that the factors multiply; lowered on each plateau.
  double base_lr() const { return base_lr_; }
  /// Whether it was created with PlateauOptions.
  bool has_plateau() const { return plateau_.has_value(); }
  /// Replaces it, and sets the optimizer's learning rate, not its initial_lr(). Does not synchronise.
  void set_base_lr(double base_lr);

  /// Extends the table to `steps` steps if the step count is on the device. Call it before a CUDA graph is captured,
  /// because a replay cannot extend the table. Beyond the end, the last factor is used.
  void reserve(int64_t steps);
  /// Number of steps in the table; 0 while the host counts. A captured step() reads the table of its capture: capture
  /// it again when this number changes.
  int64_t reserved_steps() const { return table_.defined() ? table_.numel() : 0; }

  /// State: "base_lr", "first_step" (the optimizer's count at position 0; missing in older states: 0) and, with
  /// PlateauOptions, "best", "num_bad_epochs", "cooldown_counter" (PyTorch's names). The optimizer saves the position;
  /// the program provides the schedule and the options. Loading rejects missing values and values out of range (exit
  /// code 5), and sets the learning rate: load the optimizer first.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  void apply();
  int64_t applied_steps() const;
  bool is_better(double metric) const;

  Optimizer* optimizer_;
  std::shared_ptr<const LRSchedule> schedule_;
  std::optional<PlateauOptions> plateau_;
  double base_lr_;
  int64_t first_step_ = 0;  // the optimizer's count at position 0
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
