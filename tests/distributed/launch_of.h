#pragma once
/// The launch environment of ranks that are threads of one process.

#include <cstdint>
#include <cstdlib>

#include "trainkit/distributed/process_group.h"

namespace trainkit::test {

// c10d has one flight recorder per process; ranks in threads would write to its map concurrently. The variable is read
// when the first group is created.
[[maybe_unused]] inline const int no_flight_recorder = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

inline LaunchEnvironment launch_of(int64_t rank, int64_t world_size, int port) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::kTorchrun;
  launch.rank = launch.local_rank = rank;
  launch.world_size = launch.local_world_size = world_size;
  launch.master_port = static_cast<uint16_t>(port);
  return launch;
}

}  // namespace trainkit::test
