#pragma once
// The learning rates of an optimizer's groups, on the host and on the device.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// A copy shares the tensors.
class LearningRates {
 public:
  explicit LearningRates(double lr) : lr_(lr), initial_(lr) {}
  /// Returns these rates with new memory on the device of `groups`.
  LearningRates on_device_of(const std::vector<ParamGroup>& groups) const;

  /// As last set on the host, before the groups' multiples.
  double lr() const { return lr_; }
  /// The rate that schedules multiply.
  double initial() const { return initial_; }
  double of(const ParamGroup& group) const { return lr_ * group.lr_multiple; }
  /// Each group's rate as a float32 scalar on the device. Empty unless they are kept there. Calls that set rates change
  /// their values in place.
  const std::vector<at::Tensor>& on_device() const { return views_; }
  bool are_on_device() const { return values_.defined(); }
  /// Returns each group's rate. Reads from the device if are_on_device().
  std::vector<double> of_groups(const std::vector<ParamGroup>& groups) const;

  /// Sets lr() and keeps initial(). Throws c10::ValueError unless it is finite and >= 0.
  void set(double lr);
  void set_initial(double lr) { initial_ = lr; }
  /// Sets the rates on the device to `lr` (scalar on the device) times the groups' multiples. Throws unless
  /// are_on_device(). Does not change lr().
  void set_on_device(const at::Tensor& lr);
  /// Follows a group's new multiple; `factor` is its ratio to the one before.
  void set_multiple(size_t group, double multiple, double factor);
  /// Copies the rates of `other`, of the same groups: on the device if they are kept there. Does not synchronise.
  void assign(const LearningRates& other);
  /// Sets the rates of a saved state.
  void load(double lr, double initial, const std::vector<ParamGroup>& groups);
  /// Releases the memory on the device.
  void forget_groups();
  /// Returns whether it was called before: an optimizer's first LRScheduler counts all steps, later ones only their
  /// own.
  bool note_scheduler() { return std::exchange(had_scheduler_, true); }

 private:
  double lr_, initial_;
  bool had_scheduler_ = false;
  at::Tensor multiples_, values_;  // of the groups, on the device
  std::vector<at::Tensor> views_;  // elements of values_
};

}  // namespace trainkit::detail
