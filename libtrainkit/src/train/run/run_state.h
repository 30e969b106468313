#pragma once
// Collects the contents of a run's checkpoint from its parts, and restores them. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "train/divided/sharded_copies.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/data/batch_source.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/session.h"

namespace trainkit {

/// Parts of a run that have state.
struct RunParts {
  /// What updates a part of the weights.
  struct Player {
    Optimizer& optimizer;
    LRScheduler* scheduler;  // null: a constant learning rate
    std::string name = {};   // empty: the only one
    /// Name of one of its entries in a checkpoint. One player's have no prefix.
    std::string entry(std::string_view key) const;
  };

  detail::ReplicaStrategy& devices;
  std::vector<Player> players;
  GradScaler& scaler;
  /// nullptr if the caller passes each batch.
  BatchSource* source;
  /// Objects of the program, after the source.
  std::span<const NamedState> others = {};
  /// Seed of generators that the checkpoint does not have.
  uint64_t seed = 0;
  /// TrainStep::averages().
  NamedTensors averages = {};
  /// With sharding: what each copy of the weights in this process keeps.
  std::vector<detail::ShardedCopy> copies = {};
};

/// Digest of the rows that a rank has trained on, in order. One row more, less or in another position changes it.
struct RowTrace {
  uint64_t digest = 0;
  int64_t count = 0;
  void add(std::span<const int64_t> rows);
};

/// Counters of a run.
struct RunProgress {
  int64_t step = 0;
  /// Number of earlier calls of fit of the Trainer, and the step and the loader's epoch at which this call began: its
  /// limits count from there.
  int64_t fit = 0;
  int64_t first_step = 0;
  int64_t first_epoch = 0;
  int64_t bad_evaluations = 0;
  int64_t best_step = 0;
  /// Last step that was evaluated; -1 if none.
  int64_t evaluated_step = -1;
  Metrics best = {};
  /// See TrainStep::weight_unit.
  double weight_unit = 0;
  /// The same of the players after the first.
  std::vector<double> player_units = {};
  /// By parameter, what Session::set_trainable has set.
  std::map<std::string, bool> trainable = {};
  /// See TrainStep::split.
  int64_t split = 1;
  RowTrace rows = {};
};

/// Converts the counters to the entries of a checkpoint, without the rows, and back. Entries that older checkpoints do
/// not have keep their defaults. Error of exit code 5: a missing entry, or one out of range.
StateDict progress_state(const RunProgress& progress);
absl::StatusOr<RunProgress> load_progress(const StateDict& state);

/// Rows per optimizer step, and the number of devices that share them. 0 if the checkpoint does not contain them.
struct RunShape {
  int64_t global_batch_size = 0;
  int64_t replicas = 0;
};

/// Reads the shape of the run that wrote a checkpoint.
RunShape saved_shape(const StateDict& state);

/// Reads the call of fit that wrote a checkpoint (RunProgress::fit); 0 in older checkpoints.
int64_t saved_fit(const StateDict& state);

/// Collects the state of a run. Every rank must call it, since each has its own random generators. With sharding each
/// rank's result has its own parts: pass it to keep_own_parts().
/// @param file_bytes is set to the bytes of CheckpointContents::files of all ranks
absl::StatusOr<CheckpointContents> collect_run(const RunParts& parts, const RunProgress& progress,
                                               const RunShape& shape, const StateDict& config,
                                               int64_t* file_bytes = nullptr);

/// Restores a run from the checkpoint that `spec` names (see resolve_checkpoint), in the order of Note [Order of a
/// resume]. Error of exit code 8: the run had another number of devices and `shape` has another global batch. Returns a
/// warning for the user, or an empty string: random numbers differ on another kind or number of devices, or a step has
/// another number of rows.
absl::StatusOr<std::string> resume_run(const std::string& spec, const std::string& output_dir, const RunParts& parts,
                                       const RunShape& shape, RunProgress& progress);

/// Restores weights, optimizer and schedule from the last checkpoint in `output_dir`. The position in the data, the
/// trained rows and the random generators stay as they are.
absl::Status roll_back_run(const std::string& output_dir, const RunParts& parts, RunProgress& progress);

/// Returns the bytes allocated on each device of the replicas; empty on the CPU.
std::vector<int64_t> device_memory_bytes(const DeviceReplicator& devices);
/// Gathers memory and utilisation of each rank's GPU into lists over all ranks. Unknown values are -1; a list without
/// any known value is empty.
absl::Status gather_gpus(ProcessGroup& group, std::vector<int64_t>& memory_bytes, std::vector<double>& utilisation);
/// Returns the allocator's statistics of one GPU, or of each GPU of the replicas.
AllocatorUse allocator_use(at::Device gpu);
std::vector<AllocatorUse> allocator_use(const DeviceReplicator& devices);
/// Returns the memory of a GPU in bytes.
int64_t total_memory_bytes(at::Device gpu);
/// Formats "1.21 GiB allocated, 2.5 GiB reserved, 79.1 GiB total".
std::string describe_memory(const AllocatorUse& use, int64_t total_bytes);
/// Returns a line with the memory of the GPUs of all ranks in `group`, each of which must call it; nullptr: of this
/// process alone. Empty on the CPU.
absl::StatusOr<std::string> describe_gpu_memory(const DeviceReplicator& devices, ProcessGroup* group);

}  // namespace trainkit
