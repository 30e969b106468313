#pragma once
// Numbers of applied steps of an optimizer and of each of its parameters.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace trainkit::detail {

/// See Note [Optimizer state]. A copy shares the tensors.
class StepCounts {
 public:
  explicit StepCounts(bool on_device) : on_device_(on_device) {}
  /// Returns these counts in new memory, followed by those of `parameters` more, which are 0.
  StepCounts grown(int64_t parameters, at::Device device) const;

  /// The optimizer's count: float32 scalar; undefined without parameters.
  const at::Tensor& total() const { return total_; }
  /// Number of counts. Position 0 is the optimizer's, each parameter has one of the others.
  int64_t size() const { return steps_.defined() ? steps_.numel() : 1; }
  at::Tensor at(int64_t position) const { return steps_.select(0, position); }
  /// The optimizer's count, if the host knows it without reading from the device; nullopt after a step with a
  /// GradScaler on a GPU.
  std::optional<int64_t> known() const;
  /// Upper bound of the optimizer's count that the host always knows: the steps called, including skipped ones.
  int64_t upper_bound() const { return upper_bound_; }
  /// Whether only the device knows the counts, or may from the next step on.
  bool are_on_device() const { return on_device_; }
  bool are_in_host_memory() const { return steps_.is_cpu(); }

  void count_on_device() { on_device_ = true; }
  /// Counts a step that a CUDA graph replayed in upper_bound(). The device counts the rest.
  void count_replayed() { ++upper_bound_; }
  /// Counts a step that the host skips.
  void count_skipped();
  /// Notes whether the parameter at `position` has a gradient. Returns whether that has changed.
  bool note_gradient(int64_t position, bool has_gradient);
  /// Allocates what advance() needs. Returns whether every parameter has a gradient.
  bool prepare();
  /// Counts a step of the parameters that have a gradient, unless `found_inf` is 1 on the device. prepare() returned
  /// `all`.
  void advance(const std::optional<at::Tensor>& found_inf, bool all);
  /// Sets the optimizer's count.
  void set_total(int64_t count);

 private:
  bool on_device_;
  int64_t upper_bound_ = 0;
  int64_t skipped_ = 0;  // of these, by the host
  at::Tensor steps_;     // element 0 is the optimizer's
  at::Tensor total_;     // that element
  /// Increments of steps_ in a step: 1 for element 0 and for each parameter with a gradient.
  at::Tensor advance_all_;
  at::Tensor advance_present_;
  std::vector<char> present_;
};

}  // namespace trainkit::detail
