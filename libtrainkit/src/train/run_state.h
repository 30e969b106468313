#pragma once
// What a checkpoint of a run holds, gathered from its parts and put back. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"

namespace trainkit {

/// The parts of a run that have state.
struct RunParts {
  DeviceReplicator& devices;
  Optimizer& optimizer;
  LRScheduler* scheduler;
  GradScaler& scaler;
  Prefetcher& loader;
};

/// The counters of a run.
struct RunProgress {
  int64_t step = 0;
  int64_t bad_evaluations = 0;
  int64_t best_step = 0;
  Metrics best = {};
};

/// Saves everything as step `progress.step`.
absl::Status save_run(CheckpointStore& store, const RunParts& parts, const RunProgress& progress,
                      const StateDict& config);

/// Puts everything back from the checkpoint that `spec` names (see resolve_checkpoint). The random generators come
/// last, so that nothing draws from them in between.
absl::Status resume_run(const std::string& spec, const std::string& output_dir, const RunParts& parts,
                        RunProgress& progress);

/// Bytes that the allocator holds on each device of the replicas; empty on the CPU.
std::vector<int64_t> device_memory_bytes(const DeviceReplicator& devices);

}  // namespace trainkit
