#pragma once
/// What a launcher told this process: which rank of how many it is, and where the ranks meet.

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

/// Who started the process.
enum class Launcher {
  kNone,
  kTorchrun,  ///< torchrun, or whoever else sets the variables of PyTorch's env:// (Kubernetes operators, a person).
  kSlurm,     ///< srun.
  kOpenMpi,   ///< Open MPI's mpirun.
  kTrainkit   ///< trainkit launch.
};

/// "torchrun", "slurm", "open mpi", "trainkit launch"; "none".
std::string_view launcher_name(Launcher launcher);

/// One process of a job. Ranks count from 0 over all machines, local ranks from 0 on each.
struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  /// Number of this machine; -1 where the launcher does not say (Open MPI over several machines).
  int64_t node_rank = 0;
  /// Where the ranks meet: a host name or an address without a port, and the port.
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  /// How often torchrun has started the job anew. Keys of one attempt must not be read by the next.
  int64_t restart_count = 0;
  /// The launcher's own process holds the store (TORCHELASTIC_USE_AGENT_STORE): rank 0 must not bind the port.
  bool agent_store = false;
  /// Name of the job; the same on all ranks, another one for a job beside it. May be empty.
  std::string run_id = {};
  /// File in which the launcher expects what went wrong (TORCHELASTIC_ERROR_FILE); empty: it expects nothing.
  std::string error_file = {};
  /// What is odd and no error, a sentence each: settings of NCCL under which a dead peer is never noticed.
  std::vector<std::string> warnings = {};
};

/// What the launcher of this process says; nullopt if nobody launched it. A pure function of `variables`.
///
/// Asked in this order; the first whose variables are there answers:
///
///   torchrun,   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which stand together, and
///   trainkit    GROUP_RANK, TORCHELASTIC_RESTART_COUNT, _USE_AGENT_STORE, _RUN_ID, _ERROR_FILE; TRAINKIT_LAUNCH_ID
///   launch      tells the two apart
///   Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, and PMIX_NAMESPACE as the job's name
///   Slurm       inside a step (SLURM_STEP_ID: a batch script without srun is no rank), SLURM_PROCID, SLURM_LOCALID,
///               SLURM_NODEID, SLURM_[STEP_]NTASKS or SLURM_STEP_NUM_TASKS, SLURM_[STEP_]TASKS_PER_NODE
///
/// Under Slurm and Open MPI, MASTER_ADDR and MASTER_PORT are taken where they are set. If not, ranks on one machine
/// meet on the loopback interface; over several, Slurm's meet on the first host of SLURM_[STEP_|JOB_]NODELIST (or on
/// SLURM_LAUNCH_NODE_IPADDR), and Open MPI's need MASTER_ADDR (mpirun -x MASTER_ADDR=host). The port then follows from
/// the job's number: between 12000 and 31999, below those that Linux gives to outgoing connections.
///
/// Errors: exit code 8, "error[dist.env] MASTER_PORT: out of range (got '70000', expected 1..65535)", for a variable
/// that is missing, malformed, out of range, or that contradicts another one; for TORCH_DISTRIBUTED_DEBUG that is none
/// of OFF, INFO and DETAIL.
absl::StatusOr<std::optional<LaunchEnvironment>> read_launch_environment(
    const EnvironmentVariables& variables = environment_variables());

/// Fails early, and by name, where a store would try again until its timeout: the master's name does not resolve; or,
/// on the rank that will listen (rank 0 without agent_store), the port is taken or needs rights that we lack; or
/// GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names no network interface of this machine.
/// Blocks as long as the resolver does. Exit code 8.
absl::Status check_rendezvous(const LaunchEnvironment& launch,
                              const EnvironmentVariables& variables = environment_variables());

/// The device of this rank: the CPU, or GPU number local_rank of the `device_count` that are visible. Under Slurm a
/// single visible GPU is the task's own (--gpus-per-task=1). Exit code 8 if there are fewer GPUs than local ranks.
absl::StatusOr<c10::Device> device_of_rank(const LaunchEnvironment& launch, c10::DeviceType type, int device_count);

namespace detail {

/// The first host that a Slurm node list names: "node07" of "node[07-09,12],login1". Empty if it is malformed.
std::string first_slurm_host(std::string_view nodelist);

/// Tasks on node `node` by Slurm's notation: 2 for node 1 of "4,2(x3)". 0 if it is malformed or has fewer nodes.
int64_t slurm_tasks_on_node(std::string_view tasks_per_node, int64_t node);

}  // namespace detail

}  // namespace trainkit
