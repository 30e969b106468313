#pragma once
// Saves what a step changes before its update, so that the step can be retried from its start.

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// Copies LibTorch's default generators and the buffers of every replica (BatchNorm's) at take(), into memory that is
/// allocated once. See Note [Retrying a step] in train_step.cpp.
class StepSnapshot {
 public:
  explicit StepSnapshot(const DeviceReplicator& devices);

  /// Saves generators and buffers. Never waits for a device.
  void take();
  /// Saves only the buffers.
  void take_buffers();
  /// Saves the buffers that a skipped step restores instead of those of take().
  void take_for_skip();
  /// Restores everything. Allocates nothing on a device, since it is called when memory is exhausted.
  void restore();
  /// Restores the buffers if `found_inf` is 1. The device decides; the host does not wait.
  void restore_buffers_if(const at::Tensor& found_inf);

 private:
  at::Generator cpu_generator_;
  at::mt19937 kept_engine_;
  std::optional<float> kept_normal_;
  std::optional<double> kept_double_normal_;
  std::vector<at::Generator> device_generators_, kept_generators_;
  std::vector<at::Tensor> buffers_, kept_buffers_;
  std::vector<at::Tensor> skip_buffers_;  // of take_for_skip(), if it was called
};

}  // namespace trainkit::detail
