#pragma once
/// Reads rank, world size and rendezvous address from the launcher's environment variables.

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/environment.h"

namespace trainkit {

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
///               SLURM_NODEID, SLURM_[STEP_]NTASKS or SLURM_STEP_NUM_TASKS, SLURM_[STEP_]TASKS_PER_NODE
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

}  // namespace trainkit
