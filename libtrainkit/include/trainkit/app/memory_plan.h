#pragma once
/// Predicts the memory of a run on its devices and chooses the batch size from it.

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/step_memory.h"

namespace trainkit {

/// Predicted memory of one device in a run, computed from small steps on the CPU.
struct MemoryPlan {
  BatchSizePlannerOptions options;
  BatchSizePlan plan;
  /// Relative error of the prediction at `check_batch_size`.
  double check_error = 0;
  int64_t check_batch_size = 0;
  /// Peak of each memory class. The classes need not peak at the same moment.
  MemoryBytes largest = {};
  /// Dry run only: bytes of the weights per top-level module, in the model's order.
  std::vector<std::pair<std::string, int64_t>> weight_bytes = {};
  /// Dry run only: rows per epoch, bytes of a row on the host, and floating-point operations of forward and backward
  /// for one row (count_step_flops).
  int64_t rows = 0, row_bytes = 0;
  double row_flops = 0;
  /// Optimizer steps per epoch and in the run, computed from its rows, epochs and step limit.
  int64_t steps_per_epoch = 0;
  int64_t steps = 0;
  /// Seconds per step on one device, measured on `timed_on` before the run without the gradient all-reduce; 0: not
  /// measured.
  double step_seconds = 0;
  std::string timed_on = {};
  /// Lists options to reduce memory, in this order, each with its predicted memory: smaller batches, smaller
  /// models (recorded when called: seconds), accumulation, no cache, more or fewer devices. Null without a prediction.
  /// Valid as long as the objects that the recipe refers to.
  std::function<std::string()> ladder = nullptr;
  /// Number of segments that plan_memory selected for StepRecipe::choose_segments; 1 without that option.
  int64_t checkpoint_segments = 1;
  /// With --batch_size auto on several devices: what --shard would save in accumulation; empty if nothing.
  std::string sharding_advice;
  /// Reason for a missing prediction; if set, only the plan's batch is valid.
  std::string unavailable;

  bool known() const { return unavailable.empty(); }
  /// Predicted memory of a device at the peak, for TrainerOptions.
  std::optional<MemoryBytes> predicted() const { return known() ? std::optional(plan.memory.peak) : std::nullopt; }
  /// Predicted memory as a GPU's allocator counts it; nullopt on the CPU.
  std::optional<DeviceMemory> predicted_on_device() const {
    return known() && options.reserve_bytes > 0 ? std::optional(plan.memory.device) : std::nullopt;
  }
  /// Returns the facts "memory" and "time" for the start of a run.
  RunFacts describe() const;
};

/// Bytes of a device reserved for the driver's context and the workspaces of cuBLAS and cuDNN: an allowance, not a
/// measurement.
inline constexpr int64_t kCudaReserveBytes = int64_t{512} << 20;

/// Plans the memory of a run that trains with `recipe`, before its loader is created. With --batch_size auto it chooses
/// the batch and writes it to `run` and `placement`. It sets the precision, the clipping and the permanent device
/// memory of `recipe` from the flags. --gpu_memory sets the memory of each device and --plan_devices their number.
/// Without --gpu_memory the plan uses the memory that is free now: of the device, or of the machine divided by its
/// replicas.
///
/// auto selects the largest micro-batch that fits: a divisor of a device's share of --global_batch_size or of the
/// resumed run's global batch, else a power of two. The maximum is 2048, and 64 on the CPU, which
/// is not faster with more. On a GPU in this machine the batch is then tried, and reduced if the device runs out of
/// memory. --measure tries any plan on the device of the run. Both give the time of a step.
///
/// If auto has to accumulate on several devices, or nothing fits, it also plans with --shard and says what that gives.
///
/// With StepRecipe::choose_segments the step is planned without activation checkpointing, then with 2 and more segments
/// until it fits or the maximum is reached. auto uses the first number of segments with which one row fits.
///
/// With --no-plan_memory nothing is recorded unless auto or choose_segments need it. The plan does not depend on the
/// time that the recording takes. The first rank plans for all ranks. Errors: kUsage for flags that contradict each
/// other; exit code 7 if auto finds that not even one row fits, or if the run is on the CPU and a step needs more
/// memory than is free, since Linux would kill it; those of record_step_memory.
absl::StatusOr<MemoryPlan> plan_memory(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine,
                                       StepRecipe recipe, Placement& placement);

/// Returns the facts of a run and its plan as one JSON object, for --dry_run --json: {"strategy": "single on cpu",
/// "data": ["3336 rows", "x (12, 64) Long"], ..., "plan": {...}}. Unknown memory is null.
std::string plan_to_json(const RunFacts& facts, const MemoryPlan& plan);

}  // namespace trainkit
