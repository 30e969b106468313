#pragma once
/// Implements `trainkit launch`: starts a program as several ranks on this machine.

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/core/processors.h"

namespace trainkit::tool {

struct LaunchOptions {
  int64_t nproc_per_node = 1;
  int64_t nnodes = 1;
  int64_t node_rank = 0;
  /// Rendezvous address: the host of node 0.
  std::string master_addr = "127.0.0.1";
  /// Rendezvous port. 0 chooses a free one.
  uint16_t master_port = 0;
  /// Time between SIGTERM and SIGKILL for ranks that do not end.
  std::chrono::duration<double> grace{15};
  /// Time that the other ranks have to save and end after one rank has stopped because of a signal.
  std::chrono::duration<double> stop_timeout{300};
};

/// Returns the environment of rank `local_rank`, which starts from `inherited`.
///
/// Sets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT) and
/// TRAINKIT_LAUNCH_ID. Sets OMP_NUM_THREADS to an equal share of `cpus`, at least 1, unless it is set already. Removes
/// the TORCHELASTIC_* variables of an outer torchrun.
EnvironmentVariables rank_environment(const LaunchOptions& options, int64_t local_rank, int cpus,
                                      EnvironmentVariables inherited);

/// Starts `program` once per rank and blocks until all ranks have ended. Copies their output to stdout and stderr line
/// by line, each line with its rank.
///
/// Signals: SIGINT and SIGTERM are forwarded to every rank, once each. SIGHUP is forwarded as SIGTERM, unless it is
/// ignored (nohup). SIGUSR1 is forwarded unchanged. After a second stop signal, ranks still running after `grace` are
/// killed.
///
/// Failures: when a rank fails, the other ranks get SIGTERM, and SIGKILL after `grace`. A rank that ends with 8 may
/// only have lost a peer, so the peers get one second to end by themselves first. If this process is killed, the kernel
/// kills the ranks (PR_SET_PDEATHSIG).
///
/// Blocks these signals in the calling thread while it runs: call it from the only thread, once at a time.
///
/// @return 0 if every rank returned 0; 128 + n if signal n stopped them. Or an Error: the exit code of the rank that
///   failed first (8 if it was killed), kUsage if the program cannot be started, kDistributed without a usable port.
//
// Note [Ending of ranks]
//
// A trainer that gets SIGTERM saves a checkpoint and ends with 128 + 15. A second SIGTERM makes it leave at once,
// without the checkpoint. So the launcher must not send SIGTERM to a rank that is stopping already.
//
// 1. Each rank leads its own process group (setpgid). Ctrl+C in a terminal reaches the launcher only, which forwards it
//    once. A signal to the group also reaches processes that the rank has started.
// 2. Two times control the end: at `terminate_at_` every running rank gets SIGTERM, at `kill_at_` SIGKILL. terminate()
//    sets kill_at_ to `grace` later. A second stop signal of the user sets only kill_at_.
// 3. The end of a rank sets `terminate_at_` to now plus a delay; the smallest one counts:
//      failed by itself                0
//      exit code 8                     1 s: it may only have lost a peer whose own failure shows a moment later
//      any failure after a stop signal `grace`: the ranks are stopping
//      stopped by a signal             `stop_timeout`: the ranks end one after the other, and rank 0 still saves
// 4. The error names the rank that caused the end. Order: failed by itself, exit code 8, signalled by the launcher,
//    stopped by the user. Among equals the first to end wins, since `endings_` is in order of time.
// 5. A child of a rank may keep the rank's output pipes open. After the last rank has ended, the launcher reads for at
//    most kDrainSeconds more, then returns.
absl::StatusOr<int> launch(LaunchOptions options, const std::vector<std::string>& program);

}  // namespace trainkit::tool
