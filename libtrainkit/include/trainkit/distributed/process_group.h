#pragma once
/// Reads the description of a job from its launcher, connects the ranks and provides their collectives.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/processors.h"

namespace trainkit {

// ---- Reads rank, world size and rendezvous address from the launcher's environment variables.

/// Identifies the launcher of the process.
enum class Launcher {
  kNone,
  kTorchrun,  ///< torchrun, or another program that sets the variables of env:// (Kubernetes operators, a shell).
  kSlurm,     ///< srun.
  kOpenMpi,   ///< Open MPI's mpirun.
  kTrainkit   ///< trainkit launch.
};

/// Returns "torchrun", "slurm", "open mpi", "trainkit launch" or "none".
std::string_view launcher_name(Launcher launcher);

/// Describes one process of a job. Ranks count from 0 over all machines, local ranks from 0 on each machine.
struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  /// Index of this machine; -1 if the launcher does not provide it (Open MPI on several machines).
  int64_t node_rank = 0;
  /// Rendezvous address: a host name or an address without a port, and the port.
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  /// Number of restarts by torchrun. It separates the store keys of one attempt from those of the next.
  int64_t restart_count = 0;
  /// The launcher hosts the store (TORCHELASTIC_USE_AGENT_STORE), so rank 0 must not bind the port.
  bool agent_store = false;
  /// Name of the job: equal on all ranks, different between concurrent jobs. May be empty.
  std::string run_id = {};
  /// File in which the launcher expects an error report (TORCHELASTIC_ERROR_FILE); empty if it expects none.
  std::string error_file = {};
  /// Suspicious settings that are not errors, one sentence each: NCCL settings under which a dead peer is never
  /// noticed.
  std::vector<std::string> warnings = {};
};

/// Reads the launcher's description of this process; nullopt without a launcher. A pure function of `variables`.
///
/// Launchers are tried in this order; the first whose variables are set is used:
///
///   torchrun,   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all required;
///   trainkit    GROUP_RANK, TORCHELASTIC_RESTART_COUNT, _USE_AGENT_STORE, _RUN_ID, _ERROR_FILE; TRAINKIT_LAUNCH_ID
///   launch      distinguishes the two
///   Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, and PMIX_NAMESPACE as the job's name
///   Slurm       inside a step (SLURM_STEP_ID: a batch script without srun has no rank), SLURM_PROCID, SLURM_LOCALID,
///               SLURM_NODEID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS or SLURM_NPROCS), SLURM_[STEP_]TASKS_PER_NODE
///
/// Under Slurm and Open MPI, MASTER_ADDR and MASTER_PORT are used if they are set. Otherwise ranks on one machine
/// connect over the loopback interface. On several machines Slurm ranks connect to the first host of
/// SLURM_[STEP_|JOB_]NODELIST (or to SLURM_LAUNCH_NODE_IPADDR); Open MPI ranks require MASTER_ADDR (mpirun -x
/// MASTER_ADDR=host). The default port is a hash of the job's name between 12000 and 31999, below Linux's range for
/// outgoing connections.
///
/// Errors: exit code 8, "error[dist.env] MASTER_PORT: out of range (got '70000', expected 1..65535)", for a variable
/// that is missing, malformed, out of range, or inconsistent with another one; and for TORCH_DISTRIBUTED_DEBUG other
/// than OFF, INFO or DETAIL.
absl::StatusOr<std::optional<LaunchEnvironment>> read_launch_environment(
    const EnvironmentVariables& variables = environment_variables());

/// Checks the rendezvous settings early, where a store would retry until its timeout. Blocks as long as the resolver
/// does. Errors have exit code 8 and name the variable:
///   MASTER_ADDR                             the name does not resolve, or is not this machine on the rank that listens
///   MASTER_PORT                             in use, or needs privileges, on the rank that listens
///   GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME  no such network interface on this machine
/// Rank 0 listens, unless agent_store is set.
absl::Status check_rendezvous(const LaunchEnvironment& launch,
                              const EnvironmentVariables& variables = environment_variables());

/// Returns the device of this rank: the CPU, or GPU number local_rank of the `device_count` visible ones. Under Slurm a
/// single visible GPU belongs to the task (--gpus-per-task=1). Exit code 8 if there are fewer GPUs than local ranks.
absl::StatusOr<c10::Device> device_of_rank(const LaunchEnvironment& launch, c10::DeviceType type, int device_count);

namespace detail {

/// Returns the first host of a Slurm node list: "node07" of "node[07-09,12],login1". Empty if it is malformed.
std::string first_slurm_host(std::string_view nodelist);

/// Returns the number of tasks on node `node` in Slurm's notation: 2 for node 1 of "4,2(x3)". 0 if the text is
/// malformed or has fewer nodes.
int64_t slurm_tasks_on_node(std::string_view tasks_per_node, int64_t node);

}  // namespace detail

// ---- Connects the ranks of a job and provides their collectives.

struct ProcessGroupOptions {
  /// Longest wait for the other ranks: to join, and in each collective.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  /// Listening address of our sockets: an address, a host name or a network interface of this machine. The loopback
  /// address serves ranks on this machine only. Traffic is neither encrypted nor authenticated: use a private network.
  std::string bind = "127.0.0.1";
  /// Device of the reduced tensors: the CPU (Gloo) or a GPU (NCCL, plus Gloo for host tensors).
  at::Device device = at::kCPU;
  /// Sum CPU tensors in shared memory instead of Gloo's sockets if all ranks (at most 64) are on this machine. The
  /// memory is anonymous, so nothing is left behind; at most 4 MiB per rank beyond the gradients. Used if it is true on
  /// all ranks and their processes can see each other in one network namespace; otherwise Gloo is used.
  bool shared_memory = true;
};

/// One setting that must be equal on all ranks.
struct DigestField {
  std::string name;
  std::string value;
};

/// Represents this process among the ranks of a job; owns c10d's store and its Gloo or NCCL backend.
///
///   auto launch = read_launch_environment().value();          // torchrun, Slurm, Open MPI, trainkit launch
///   auto group = ProcessGroup::create(*launch, {.timeout = std::chrono::seconds(60)}).value();
///   group->compare_digest({{"batch_size", "32"}}).IgnoreError();
///   group->all_reduce(sum, "all_reduce(rows)").IgnoreError();
///
/// Every rank makes the same calls in the same order. If a rank is killed, stopped, or leaves, the calls of the other
/// ranks fail with an Error of exit code 8 that names the rank, the step and the collective:
///   error[dist.peer] rank 1 lost at step 1234 in allreduce(bucket 3) after 0.01 s: connection closed by peer
/// The error comes at once if a connection breaks, else at the timeout. To find the lost rank, each rank answers the
/// others through the store from a separate thread, independent of its main thread. After such an error the group
/// cannot be used.
///
/// Threads: one thread makes the calls; set_step and leave may be called from any thread.
class ProcessGroup {
 public:
  /// Connects to the other ranks. Blocks until all have joined. Errors of exit code 8:
  ///   dist.env   an address that cannot be bound or reached, a duplicate rank, a different WORLD_SIZE on another rank
  ///   dist.join  ranks that did not join within the timeout, by number
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> create(const LaunchEnvironment& launch,
                                                              const ProcessGroupOptions& options = {});
  /// Reports a regular exit to the other ranks, unless leave() was called.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t rank() const;
  int64_t world_size() const;
  const ProcessGroupOptions& options() const;

  /// Compares `fields` over all ranks through the store, with barriers. If a value differs or is missing, every rank
  /// gets the same error: exit code 8, dist.digest, with the field and the ranks whose value differs from rank 0's.
  absl::Status compare_digest(const std::vector<DigestField>& fields);

  /// Sums `tensor` over all ranks in place; every rank gets the same bits. For a CPU tensor, blocks the host until the
  /// sum is done; for a CUDA tensor, orders the work on the current stream. `what` names the call in error messages.
  absl::Status all_reduce(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// Takes the maximum of each element over all ranks in place, like all_reduce.
  absl::Status all_reduce_max(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// Overwrites `tensors` with those of `root`, 25 MiB at a time.
  absl::Status broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0, std::string_view what = "broadcast");
  /// Returns `text` of rank `root`, through the store, with a barrier.
  absl::StatusOr<std::string> broadcast_text(std::string text, int64_t root = 0, std::string_view what = "broadcast");
  /// Blocks until all ranks have called it. Uses the host's backend (Gloo).
  absl::Status barrier(std::string_view what = "barrier");

  /// Sets the step that error messages and answers to other ranks contain.
  void set_step(int64_t step);
  /// Reports to the other ranks why this rank leaves: their errors end with `reason`. Only the first call has an
  /// effect.
  void leave(std::string_view reason);
  /// Returns whether this rank may still make calls: false after leave() and after a lost rank.
  bool usable() const;

  class Impl;
  /// c10d objects, for the parts of the library that need them.
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
