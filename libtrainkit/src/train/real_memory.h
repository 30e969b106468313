#pragma once
// What a training step really takes of a device's memory.

#include <cstdint>
#include <memory>

#include "memory/memory_recorder.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/memory/caching_allocator_model.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Counts steps, from its creation on. On the CPU every allocation of the process; on a GPU its allocator's own peak.
class RealMemory {
 public:
  RealMemory(const DeviceReplicator& devices, const Optimizer& optimizer);

  /// Whether one device can be told apart: not where several replicas share the CPU.
  static bool can_measure(const DeviceReplicator& devices);

  /// Ends the count. Reserved bytes are 0 on the CPU. `beside` is what lives on the device beside weights, optimizer
  /// state and what the step allocates (batches, a cache); a GPU's own count has it. The most of several devices. 0 if
  /// another part of the process was counting.
  DeviceMemory finish(int64_t beside);

 private:
  const DeviceReplicator& devices_;
  int64_t standing_ = 0;
  std::unique_ptr<MemoryRecorder> recorder_;
};

}  // namespace trainkit::detail
