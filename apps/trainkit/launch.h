#pragma once
/// `trainkit launch`: a program as several ranks on this machine.

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/core/environment.h"

namespace trainkit::tool {

struct LaunchOptions {
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  /// Where the ranks meet.
  std::string master_addr = "127.0.0.1";
  /// 0 chooses one that is free.
  uint16_t master_port = 0;
  /// From SIGTERM to SIGKILL, for ranks that do not end.
  std::chrono::duration<double> grace{15};
  /// How long the others may take to save and end once a rank has stopped by a signal.
  std::chrono::duration<double> stop_timeout{300};
};

/// What rank `local_rank` finds in its environment: `inherited` with torchrun's names set (RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT), TRAINKIT_LAUNCH_ID, and OMP_NUM_THREADS where
/// it is not set: an equal share of `cpus`. An outer torchrun's variables are gone.
EnvironmentVariables rank_environment(const LaunchOptions& options, int64_t local_rank, int cpus,
                                      EnvironmentVariables inherited);

/// Starts `program` once per rank and waits until all have ended; their output goes to stdout and stderr line by line,
/// each with its rank.
///
/// SIGINT and SIGTERM are passed on to the ranks, once each, SIGHUP (unless nohup has it ignored) as SIGTERM, and
/// SIGUSR1 as it is; after a second one whoever has not ended within `grace` is killed. When a rank fails, the others
/// get SIGTERM, and SIGKILL after `grace`. A rank that ends with 8 may be the victim of another that has not ended yet:
/// it gets a second to show. If this process is killed, the kernel kills the ranks (PR_SET_PDEATHSIG).
///
/// @return 0 if all ranks did; 128 + n if they were stopped by signal n. Or an Error whose exit code is that of the
///   first rank that failed, 8 if it was killed; kUsage if the program cannot be started.
absl::StatusOr<int> launch(LaunchOptions options, const std::vector<std::string>& program);

}  // namespace trainkit::tool
