#pragma once
/// Measures the speed of a trainer: of its loader, of its step, and of both. `PROGRAM benchmark` is a command of every
/// trainer.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {

struct TrainingTask;

enum class Measured {
  kBoth,    ///< Training as in a run: loader, replicas, loss, backward, clipping, optimizer.
  kLoader,  ///< The loader alone.
  kStep     ///< The step alone, on one batch in memory.
};

/// A measured speed. The rate is that of all ranks together; the other values are those of this process.
struct Speed {
  double rows_per_second = 0;
  /// Duration of an epoch at that rate.
  double epoch_seconds = 0;
  /// Share of the time in which the step waited for data.
  double waiting_share = 0;
  /// Share of the time in which the devices were busy: from NVML with CUDA, else 1 - waiting_share.
  double utilisation = 1;
  /// Periodic swing of the utilisation, if there is one; the period is in seconds and fits twice into the measurement.
  std::optional<Swing> swing = {};
};

/// Measures `task` for `seconds`, after a warm-up of a tenth of that, with the loader, precision and clipping of `run`
/// on the devices of `placement`. Every rank measures with the same settings; they end after the same step. The task
/// needs a model factory, a loss, an optimizer and a training set; open() of a trainer may leave out the optimizer.
/// Blocks. Errors: those of the loader and of DeviceReplicator::create; kInvalidArgument for data of less than one
/// batch.
absl::StatusOr<Speed> measure_speed(const TrainingTask& task, Measured measured, const RunOptions& run,
                                    const MachineInfo& machine, const Placement& placement, double seconds);

/// Interprets three rates in rows per second: loader alone, step alone, both. Returns one sentence that names the
/// bottleneck and the setting to change. `setting` is how both were measured ("with --feed device "), `remedy` another
/// choice than the number of workers (" or --feed device"). A pure function.
std::string speed_verdict(double loader, double step, double both, int64_t num_workers, const std::string& setting = {},
                          const std::string& remedy = {});

}  // namespace trainkit
