#pragma once
/// Runs the main function of a program, and determines where it trains: ranks, devices, batch size, rows of each rank.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/core/processors.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {

struct StepRecipe;

// ---- Runs a program's main function and reports its errors.

/// State used for error reporting at exit.
struct ProgramState {
  /// Folder for error.json; set it once the folder belongs to the run. Empty: no file. With several ranks the first one
  /// writes it.
  std::string output_dir = {};
  /// Ranks, once they are connected.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

/// Calls `body` and returns the exit code of the process, from its result or its exception. Prints an error on stderr
/// as one line (and a hint), and writes it to `<output_dir>/error.json` if `output_dir` is set. With several ranks the
/// line begins with "[rank 1] ", and the other ranks and the launcher (TORCHELASTIC_ERROR_FILE) receive the reason.
///
///   int main(int argc, char** argv) {
///     return trainkit::run_program([&](ProgramState& program) -> absl::StatusOr<int> { ...; return 0; });
///   }
int run_program(const std::function<absl::StatusOr<int>(ProgramState& program)>& body);

/// Prints a line on stdout and flushes it.
void print_line(const std::string& line);

// ---- Determines where a program trains: ranks, devices, batch size, and the rows of each rank.

/// Rows per optimizer step: batch_size x replicas x grad_accum_steps.
struct BatchPlan {
  int64_t batch_size = 1;
  /// Number of replicas over all processes.
  int64_t replicas = 1;
  int64_t grad_accum_steps = 1;
  int64_t global_batch_size() const { return batch_size * replicas * grad_accum_steps; }
};

/// Where one process of a run trains.
struct Placement {
  /// kAuto follows from devices and group, as in DeviceReplicatorOptions. resolve_devices() returns another one.
  Strategy strategy = Strategy::kAuto;
  /// Devices of this process, one model replica on each; the CPU is repeated once per logical replica.
  std::vector<at::Device> devices = {at::kCPU};
  BatchPlan batch = {};
  /// Ranks of kDistributed; nullptr for one process.
  std::shared_ptr<ProcessGroup> group = nullptr;
  /// Warnings, one sentence each: problems of the launcher's environment, GPUs that our kernels were not compiled for.
  std::vector<std::string> warnings = {};

  int64_t rank() const { return group ? group->rank() : 0; }
  int64_t ranks() const { return group ? group->world_size() : 1; }
  /// True for the one process that writes files and prints.
  bool is_first() const { return rank() == 0; }
  at::Device device() const { return devices.front(); }
};

/// "auto", "single", "dp" or "ddp".
const char* name_of(Strategy strategy);

/// Describes this machine and, from the launcher's environment, this process. Errors: those of read_launch_environment
/// (exit code 8).
absl::StatusOr<MachineInfo> launched_machine(const EnvironmentVariables& variables = environment_variables());

/// Resolves --strategy, --device, --use_multi_gpu, --gpu_ids and --parallel to strategy, devices and batch.replicas;
/// the group stays nullptr. auto is ddp under a launcher, dp if several devices are requested, else single. A rank of
/// ddp uses the GPU with its local rank. Errors: more devices than the machine has; flags that contradict each other or
/// the launcher.
absl::StatusOr<Placement> resolve_devices(const ConfigParser& parser, const RunOptions& options,
                                          const MachineInfo& machine = MachineInfo::here());

/// Resolves batch_size and grad_accum_steps on `replicas` devices: as given, or to reach `global_batch_size` (0: the
/// value in the options, if set). In the latter case the batch per device is the largest divisor of its share that is
/// at most --batch_size. With --batch_size auto it is one row until the memory is planned. Error of exit code 8: the
/// global batch is not divisible by the replicas.
absl::StatusOr<BatchPlan> resolve_batch(const ConfigParser& parser, const RunOptions& options, int64_t replicas,
                                        int64_t global_batch_size = 0);

/// Returns --num_workers for this process: auto is min(cpus / 2, 8, 2 x devices), divided among the ranks of this
/// machine, and at least 1. The devices are those that all ranks of this machine train on, logical replicas included;
/// other visible GPUs do not count.
int resolve_num_workers(const RunOptions& options, const Placement& placement,
                        const MachineInfo& machine = MachineInfo::here());

/// Sets the number of LibTorch's intra-op threads to --threads and returns it. By default the threads share the
/// processors that the loader's workers leave free (suggest_intra_op_threads) with the other ranks of this machine. The
/// number never exceeds the current one (OMP_NUM_THREADS). The last bits of LibTorch's sums depend on this number. It
/// depends only on the flags and the machine, so a resumed run uses the same number.
int share_processors(const RunOptions& run, const Placement& placement, const MachineInfo& machine, ReadCost cost);

/// Chooses devices and batch of a run; call check_run_options first. Under a launcher it connects to the other ranks
/// and compares the settings with theirs before any collective. Paths and settings of a single machine (workers,
/// devices) may differ. A run that resumes on another number of devices keeps its global batch.
///
/// Stores the ranks in `program`, so that they learn the reason if this one fails. Blocks until all ranks have
/// connected. Errors of exit code 8: those of ProcessGroup; dist.digest, which names the setting that differs;
/// dist.batch.
absl::StatusOr<Placement> place_run(const ConfigParser& parser, const RunOptions& run, const MachineInfo& machine,
                                    ProgramState& program);

/// Calls `make` on the first rank, then on the others, so that these find the data that the first one has prepared (a
/// cache). An error of the first rank ends the others too, with exit code 8.
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

/// Creates the loader of this process's training rows, in `order` (over all rows). An epoch has the same rows for any
/// number of ranks or devices: all rows, or with --drop_last those of full batches of --batch_size.
absl::StatusOr<std::unique_ptr<Prefetcher>> training_loader(std::shared_ptr<const Dataset> dataset,
                                                            std::shared_ptr<const Sampler> order, const RunOptions& run,
                                                            const MachineInfo& machine, const Placement& placement);

/// Creates the loader of this process's share of all rows, each once over all ranks; evaluate() ignores the padding
/// rows. With `--on_error replace` an unreadable row is skipped instead, since the score of another row must not count
/// in its place.
absl::StatusOr<std::unique_ptr<Prefetcher>> evaluation_loader(std::shared_ptr<const Dataset> dataset,
                                                              const RunOptions& run, const MachineInfo& machine,
                                                              const Placement& placement);

/// Compares the number of rows and the fields of data sets over the ranks, without a collective. Error: dist.digest.
absl::Status compare_data(const Placement& placement,
                          std::initializer_list<std::pair<const char*, const Dataset*>> sets);

/// Returns the options for DeviceReplicator::create: the devices of `placement`, what the flags add to them, and then
/// StepRecipe::configure_devices.
DeviceReplicatorOptions replicator_options(const Placement& placement);
DeviceReplicatorOptions replicator_options(const RunOptions& run, const Placement& placement, const StepRecipe& recipe);

}  // namespace trainkit
