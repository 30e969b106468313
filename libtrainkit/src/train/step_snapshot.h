#pragma once
// What a step changes before its update, so that it can be taken again from where it began.

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "trainkit/distributed/device_replicator.h"

namespace trainkit::detail {

/// LibTorch's default generators and the buffers of every replica (BatchNorm's), as they were at take(). The memory for
/// them is allocated once.
class StepSnapshot {
 public:
  explicit StepSnapshot(const DeviceReplicator& devices);

  /// Never waits for a device.
  void take();
  /// The buffers alone.
  void take_buffers();
  /// Puts all back. Allocates nothing on a device.
  void restore();
  /// Puts the buffers back where `found_inf` is 1, decided on the device.
  void restore_buffers_if(const at::Tensor& found_inf);

 private:
  at::Generator cpu_generator_;
  at::mt19937 kept_engine_;
  std::optional<float> kept_normal_;
  std::optional<double> kept_double_normal_;
  std::vector<at::Generator> device_generators_, kept_generators_;
  std::vector<at::Tensor> buffers_, kept_buffers_;
};

}  // namespace trainkit::detail
