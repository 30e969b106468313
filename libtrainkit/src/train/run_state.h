#pragma once
// What a checkpoint of a run holds, gathered from its parts and put back. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/logging/monitor.h"
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

/// The rows that a rank has trained on, in their order: one row more, less or elsewhere is another digest.
struct RowTrace {
  uint64_t digest = 0;
  int64_t count = 0;
  void add(std::span<const int64_t> rows);
};

/// The counters of a run.
struct RunProgress {
  int64_t step = 0;
  int64_t bad_evaluations = 0;
  int64_t best_step = 0;
  /// The last step after which the run was evaluated; -1: none.
  int64_t evaluated_step = -1;
  Metrics best = {};
  /// See TrainStep::weight_unit.
  double weight_unit = 0;
  /// See TrainStep::split.
  int64_t split = 1;
  RowTrace rows = {};
};

/// Rows of an optimizer step, and the devices that share them. 0: the checkpoint does not say.
struct RunShape {
  int64_t global_batch_size = 0;
  int64_t replicas = 0;
};

/// What a checkpoint of save_run says of the run that wrote it.
RunShape saved_shape(const StateDict& state);

/// Everything of a run as it is now. Every rank calls it: each has random generators of its own.
absl::StatusOr<CheckpointContents> collect_run(const RunParts& parts, const RunProgress& progress,
                                               const RunShape& shape, const StateDict& config);

/// Puts everything back from the checkpoint that `spec` names (see resolve_checkpoint). The random generators come
/// last, so that nothing draws from them in between. Exit code 8 if the run had another number of devices and `shape`
/// has another global batch. Returns what a person should know of the run's numbers from here on, or nothing: random
/// numbers are others on another kind or number of devices.
absl::StatusOr<std::string> resume_run(const std::string& spec, const std::string& output_dir, const RunParts& parts,
                                       const RunShape& shape, RunProgress& progress);

/// Puts weights, optimizer and schedule back from the last checkpoint in `output_dir`; the place in the data, what came
/// before it and the random generators stay where they are.
absl::Status roll_back_run(const std::string& output_dir, const RunParts& parts, RunProgress& progress);

/// What ranks must have alike of a data set: "<name> rows" and "<name> fields".
void append_data_fields(const std::string& name, const Dataset& dataset, std::vector<DigestField>& fields);

/// Bytes that the allocator holds on each device of the replicas; empty on the CPU.
std::vector<int64_t> device_memory_bytes(const DeviceReplicator& devices);
/// Makes both, of this rank's one GPU, lists of all ranks: what is not known of a rank is -1, and a list without
/// anything known is empty.
absl::Status gather_gpus(ProcessGroup& group, std::vector<int64_t>& memory_bytes, std::vector<double>& utilisation);
/// All that its allocator says of each GPU.
std::vector<AllocatorUse> allocator_use(const DeviceReplicator& devices);

}  // namespace trainkit
