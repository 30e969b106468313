#include "train/planning/real_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <variant>

#include "distributed/shards/parameter_shards.h"
#include "trainkit/train/weights.h"

namespace trainkit::detail {

RealMemory::RealMemory(const ReplicaStrategy& devices, const Optimizer& optimizer, const NamedTensors& averages)
    : devices_(devices) {
  if (!devices.device().is_cpu()) {
    for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
      const at::Device device = devices.device(replica);
      at::getDeviceAllocator(device.type())->resetPeakStats(std::max<c10::DeviceIndex>(device.index(), 0));
    }
    return;
  }
  for (const auto& [name, tensor] : named_tensors(*devices.module()))
    resident_bytes_ += static_cast<int64_t>(tensor.nbytes());
  for (const auto& [name, tensor] : averages) resident_bytes_ += static_cast<int64_t>(tensor.nbytes());
  for (const auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) resident_bytes_ += static_cast<int64_t>(tensor->nbytes());
  }
  if (devices.shards()) {
    for (const at::Tensor& memory : devices.shards()->reduction().memory())
      resident_bytes_ += static_cast<int64_t>(memory.nbytes());
  }
  for (const at::Tensor& parameter : devices.module()->parameters()) {  // gradient buckets of several ranks
    if (devices.process_group() && !devices.shards() && parameter.requires_grad())
      resident_bytes_ += static_cast<int64_t>(parameter.nbytes());
  }
  try {
    recorder_ = std::make_unique<MemoryRecorder>(MemoryClass::kActivations);
  } catch (const c10::Error&) {  // another recorder is active: continue without a measurement
  }
}

bool RealMemory::can_measure(const ReplicaStrategy& devices) {
  return devices.replicas() == 1 || !devices.device().is_cpu();
}

DeviceMemory RealMemory::finish(int64_t other_bytes) {
  if (recorder_) {
    const MemoryTrace trace = recorder_->trace();
    recorder_.reset();
    return {.allocated_bytes = resident_bytes_ + other_bytes + trace.without(MemoryClass::kWorkspace).peak().total()};
  }
  DeviceMemory most;
  if (devices_.device().is_cpu()) return most;
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    const at::Device device = devices_.device(replica);
    const auto stats =
        at::getDeviceAllocator(device.type())->getDeviceStats(std::max<c10::DeviceIndex>(device.index(), 0));
    most.allocated_bytes = std::max(most.allocated_bytes, stats.allocated_bytes[0].peak);
    most.reserved_bytes = std::max(most.reserved_bytes, stats.reserved_bytes[0].peak);
  }
  return most;
}

}  // namespace trainkit::detail
