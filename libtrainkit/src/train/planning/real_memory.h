#pragma once
// Measures the device memory of a training step.

#include <cstdint>
#include <memory>

#include "distributed/replicas/replica_strategy.h"
#include "memory/memory_recorder.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/memory/memory_trace.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Measures from its construction to finish(). On the CPU it counts every allocation of the process; on a GPU it uses
/// the peak of the allocator.
class RealMemory {
 public:
  RealMemory(const ReplicaStrategy& devices, const Optimizer& optimizer, const NamedTensors& averages);

  /// Returns whether one device can be measured: false if several replicas share the CPU.
  static bool can_measure(const ReplicaStrategy& devices);

  /// Ends the measurement and returns the maximum over the devices. `other_bytes` is the device memory besides weights,
  /// optimizer state and the step's allocations (batches, a cache); a GPU's allocator counts it already. Reserved bytes
  /// are 0 on the CPU. Returns 0 if another part of the process was measuring.
  DeviceMemory finish(int64_t other_bytes);

 private:
  const ReplicaStrategy& devices_;
  int64_t resident_bytes_ = 0;  // weights, optimizer state, gradient buckets
  std::unique_ptr<MemoryRecorder> recorder_;
};

}  // namespace trainkit::detail
