#pragma once
/// Learning-rate schedules: pure functions of the number of steps.

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainkit {

/// What the learning rate is multiplied by, as a function of the optimizer steps applied so far.
///
/// A schedule of one's own derives from this and overrides factor(); see examples/custom_schedule.cpp. It must be a
/// pure function: it is asked for any step, in any order and from any thread, and more than once.
class LRSchedule {
 public:
  virtual ~LRSchedule() = default;
  /// The factor for the step that follows `step` applied ones: factor(0) is for the first. Finite and not negative.
  virtual double factor(int64_t step) const = 0;
};

/// Always 1.
class ConstantLR : public LRSchedule {
 public:
  double factor(int64_t) const override { return 1.0; }
};

struct LinearLROptions {
  /// Factors at the first step and from total_steps on.
  double start_factor = 1.0;
  double end_factor = 0.0;
  int64_t total_steps = 1;
};

/// A straight line from start_factor to end_factor, which then stays. Source: torch.optim.lr_scheduler.LinearLR.
class LinearLR : public LRSchedule {
 public:
  /// Options out of range are errors (c10::ValueError), here and below; all are named at once.
  explicit LinearLR(const LinearLROptions& options);
  double factor(int64_t step) const override;

 private:
  LinearLROptions options_;
};

struct CosineAnnealingLROptions {
  /// Steps of the half wave from 1 to min_factor.
  int64_t total_steps = 1;
  /// PyTorch's eta_min divided by the learning rate.
  double min_factor = 0.0;
};

/// min + (1 - min) (1 + cos(pi step / total)) / 2, which then stays at min (PyTorch's rises again).
/// Source: Loshchilov and Hutter, "SGDR"; torch.optim.lr_scheduler.CosineAnnealingLR.
class CosineAnnealingLR : public LRSchedule {
 public:
  explicit CosineAnnealingLR(const CosineAnnealingLROptions& options);
  double factor(int64_t step) const override;

 private:
  CosineAnnealingLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  /// Steps of the first period, and what each next one is longer by.
  int64_t t_0 = 1;
  int64_t t_mult = 1;
  double min_factor = 0.0;
};

/// The same half wave again and again. Source: "SGDR"; torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.
class CosineAnnealingWarmRestarts : public LRSchedule {
 public:
  explicit CosineAnnealingWarmRestarts(const CosineAnnealingWarmRestartsOptions& options);
  double factor(int64_t step) const override;

 private:
  CosineAnnealingWarmRestartsOptions options_;
};

struct StepLROptions {
  int64_t step_size = 1;
  double gamma = 0.1;
};

/// gamma to the power of step / step_size, rounded down. Source: torch.optim.lr_scheduler.StepLR.
class StepLR : public LRSchedule {
 public:
  explicit StepLR(const StepLROptions& options);
  double factor(int64_t step) const override;

 private:
  StepLROptions options_;
};

struct OneCycleLROptions {
  int64_t total_steps = 2;
  /// Share of the steps in which the learning rate rises.
  double pct_start = 0.3;
  /// The first factor is 1 / div_factor, the last that divided by final_div_factor.
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  /// Straight lines instead of half waves.
  bool linear = false;
  /// Down as fast as up, then to the last factor.
  bool three_phase = false;
};

/// Up from 1 / div_factor to 1 (the optimizer's learning rate is PyTorch's max_lr) and down to the last factor, which
/// then stays. Momentum is not cycled. Source: Smith and Topin, "Super-convergence";
/// torch.optim.lr_scheduler.OneCycleLR.
class OneCycleLR : public LRSchedule {
 public:
  explicit OneCycleLR(const OneCycleLROptions& options);
  double factor(int64_t step) const override;

 private:
  OneCycleLROptions options_;
};

struct WarmupOptions {
  int64_t warmup_steps = 0;
  /// Factor of the first step; 1 / (warmup_steps + 1) if not set, so that no step is wasted at 0 (nanoGPT's rule).
  std::optional<double> start_factor = std::nullopt;
};

/// A straight line from start_factor to 1 over warmup_steps, then `schedule` from its beginning.
/// Source: torch.optim.lr_scheduler.SequentialLR of a LinearLR and another.
class WarmupLR : public LRSchedule {
 public:
  WarmupLR(const WarmupOptions& options, std::shared_ptr<const LRSchedule> schedule);
  double factor(int64_t step) const override;

 private:
  int64_t warmup_steps_;
  double start_factor_;
  std::shared_ptr<const LRSchedule> schedule_;
};

/// A schedule by name, as a command line gives it.
struct ScheduleOptions {
  /// constant, linear, cosine, cosine_restarts, step or one_cycle. (plateau is a PlateauOptions for LRScheduler.)
  std::string name = "constant";
  /// Length of the run, warm-up included. Not needed for constant and step.
  int64_t total_steps = 0;
  int64_t warmup_steps = 0;
  /// Where linear, cosine and cosine_restarts end: the lowest learning rate divided by the highest.
  double min_factor = 0.0;
  /// cosine_restarts: steps of the first period (0: a quarter of the run) and growth; step: period (0: a third) and
  /// factor.
  int64_t period_steps = 0;
  int64_t period_growth = 1;
  double gamma = 0.1;
};

/// The names that create_schedule knows.
const std::vector<std::string>& schedule_names();

/// The schedule with its warm-up. kInvalidArgument (exit code 3) names an unknown schedule, the nearest name, or every
/// option out of range.
absl::StatusOr<std::shared_ptr<const LRSchedule>> create_schedule(const ScheduleOptions& options);

}  // namespace trainkit
