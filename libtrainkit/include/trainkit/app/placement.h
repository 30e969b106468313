#pragma once
/// Where a program trains: the ranks that a launcher has started, the devices, the rows per step, and who reads which.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <utility>

#include "trainkit/app/program.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/environment.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// The place of one process in its run.
struct Placement {
  DevicePlan plan;
  BatchPlan batch;
  /// The ranks of ddp; nullptr for one process.
  std::shared_ptr<ProcessGroup> group = nullptr;
  /// What is odd about the launcher's environment, and GPUs without kernels of ours; a sentence each.
  std::vector<std::string> warnings = {};

  int64_t rank() const { return group ? group->rank() : 0; }
  int64_t ranks() const { return group ? group->world_size() : 1; }
  /// The one process that writes files and talks to people.
  bool is_first() const { return rank() == 0; }
  at::Device device() const { return plan.devices.front(); }
};

/// This machine, and what the launcher says of this process. Errors: those of read_launch_environment (exit code 8).
absl::StatusOr<Machine> launched_machine(const EnvironmentVariables& variables = environment_variables());

/// Devices and batch of a run, once check_run_options has found nothing wrong. Under a launcher it meets the other
/// ranks and compares the settings with theirs, before any collective; paths and what concerns one machine alone
/// (workers, devices) may differ. A run that goes on on another number of devices keeps its global batch.
///
/// The ranks stay in `program`, so that the others learn why this one ends. Blocks until all ranks are there. Errors of
/// exit code 8: those of ProcessGroup; dist.digest names the setting that differs; dist.batch.
absl::StatusOr<Placement> place_run(const ConfigParser& parser, const RunOptions& run, const Machine& machine,
                                    Program& program);

/// Calls `make` on the first rank, then on the others: what one rank makes of the data (a cache) the others find.
/// An error of the first rank ends the others too, with exit code 8.
template <class Make>
auto first_rank_first(const Placement& placement, const char* what, Make make) -> decltype(make()) {
  if (!placement.group) return make();
  if (placement.is_first()) {
    auto made = make();
    if (!made.ok()) return made;
    if (absl::Status status = placement.group->barrier(what); !status.ok()) return status;
    return made;
  }
  if (absl::Status status = placement.group->barrier(what); !status.ok()) return status;
  return make();
}

/// The rows that this process trains on, in `order` (over all rows). An epoch has the same rows for any number of ranks
/// or devices: all, or with --drop_last those of full batches of --batch_size.
absl::StatusOr<std::unique_ptr<Prefetcher>> training_loader(std::shared_ptr<const Dataset> dataset,
                                                            std::shared_ptr<const Sampler> order, const RunOptions& run,
                                                            const Machine& machine, const Placement& placement);

/// This process's share of all rows, each once over the ranks; evaluate() does not count rows that pad a rank's share.
/// With `--on_error replace` an unreadable row is skipped: the score of another row must not count in its place.
absl::StatusOr<std::unique_ptr<Prefetcher>> evaluation_loader(std::shared_ptr<const Dataset> dataset,
                                                              const RunOptions& run, const Machine& machine,
                                                              const Placement& placement);

/// Compares the number of rows and the fields of data sets over the ranks, without a collective. dist.digest.
absl::Status compare_data(const Placement& placement,
                          std::initializer_list<std::pair<const char*, const Dataset*>> sets);

/// What DeviceReplicator::create takes.
DeviceReplicatorOptions replicator_options(const RunOptions& run, const Placement& placement);

}  // namespace trainkit
