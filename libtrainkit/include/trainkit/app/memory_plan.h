#pragma once
/// What a run will take of its devices' memory, and which batch follows from that.

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
#include "trainkit/train/step_memory.h"

namespace trainkit {

/// The memory of one device in a run, predicted from small steps on the CPU.
struct MemoryPlan {
  BatchSizePlannerOptions options;
  BatchSizePlan plan;
  /// What the prediction was off by at the batch that it was checked with.
  double check_error = 0;
  int64_t check_batch_size = 0;
  /// The most of each class at any moment, which is not the same moment for all.
  MemoryBytes largest = {};
  /// Of a dry run: the bytes of the model's weights by its outermost modules, in their order.
  std::vector<std::pair<std::string, int64_t>> weight_bytes = {};
  /// Of a dry run: rows of an epoch, the bytes of one on the host, and the operations of forward and backward for one
  /// (count_step_flops).
  int64_t rows = 0, row_bytes = 0;
  double row_flops = 0;
  /// Optimizer steps of an epoch and of the run, by its rows, epochs and limit of steps.
  int64_t steps_per_epoch = 0;
  int64_t steps = 0;
  /// Seconds of a step on one device, as measured on `timed_on` before the run, without the exchange of gradients; 0:
  /// not measured.
  double step_seconds = 0;
  std::string timed_on = {};
  /// What may help where memory is out, in the guides' order, each with what it is predicted to take: smaller batches,
  /// smaller models (recorded now: seconds), accumulation, no cache, more or fewer devices. Null without a prediction.
  /// Valid as long as what the recipe refers to.
  std::function<std::string()> ladder = nullptr;
  /// What plan_memory chose for StepRecipe::choose_segments; 1 if there was nothing to choose.
  int64_t checkpoint_segments = 1;
  /// Why there is no prediction; then only the plan's batch means something.
  std::string unavailable;

  bool known() const { return unavailable.empty(); }
  /// What lives on a device at the peak, for TrainerOptions.
  std::optional<MemoryBytes> predicted() const { return known() ? std::optional(plan.memory.peak) : std::nullopt; }
  /// On a GPU, as its allocator counts it; without a value on the CPU.
  std::optional<DeviceMemory> predicted_on_device() const {
    return known() && options.reserve_bytes > 0 ? std::optional(plan.memory.device) : std::nullopt;
  }
  /// "memory ..." for the first lines of a run, with line ends.
  std::string describe() const;
  /// One JSON object; memory is null where it is not known.
  std::string to_json() const;
};

/// Bytes of a device that a plan leaves to the driver's context and the workspaces of cuBLAS and cuDNN: an allowance,
/// not a measurement.
inline constexpr int64_t kCudaReserveBytes = int64_t{512} << 20;

/// The plan of a run that trains with `recipe`, before its loader is made. Chooses the batch if --batch_size is auto,
/// and writes it to `run` and `placement`; `recipe`'s precision, clipping and what stands on the device beside the step
/// are filled in from the flags. --gpu_memory stands for the memory of each device, and --plan_devices for their
/// number; without the former it is what is free on the device now, or in the machine, shared by its replicas.
///
/// auto takes the largest micro-batch that fits: of a device's share of --global_batch_size, or of the run that is
/// resumed; else of powers of two up to 2048, the guides' largest, on the CPU (which is no faster with more) up to 64.
/// On a GPU that is here it is then tried, and a smaller one taken where the device has no memory for it; --measure
/// tries any plan on the device of the run. Either gives the time of a step.
///
/// With StepRecipe::choose_segments the step is planned without activation checkpointing, then with 2 segments and more
/// until it fits, or until there are no more; auto takes the batch of the first with which a row fits.
///
/// With --no-plan_memory nothing is recorded, unless auto or choose_segments need it. How long the recording takes has
/// no effect on the plan. The first rank plans for all. Errors: kUsage for flags that do not go together, exit code 7
/// if auto finds that not even one row fits, those of record_step_memory.
absl::StatusOr<MemoryPlan> plan_memory(const ConfigParser& parser, RunOptions& run, const Machine& machine,
                                       StepRecipe recipe, Placement& placement);

/// The first lines of a run as JSON, with the plan as "plan".
std::string plan_to_json(std::string_view lines, const MemoryPlan& plan);

}  // namespace trainkit
