#pragma once
/// Ranks as threads of the test process.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../ranks.h"
#include "trainkit/core/error.h"
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

/// The text of `status`, or "ok".
inline std::string text_of(const absl::Status& status) { return status.ok() ? "ok" : error_line(status); }

/// Calls work(group) on `count` ranks, each a thread of this process; returns the results.
inline std::vector<std::string> on_ranks(int64_t count, const std::function<absl::Status(ProcessGroup&)>& work,
                                         ProcessGroupOptions options = {.timeout = std::chrono::seconds(20)}) {
  const int port = free_port();
  std::vector<std::string> texts(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = ProcessGroup::create(launch_of(rank, count, port), options);
      texts[static_cast<size_t>(rank)] = text_of(group.ok() ? work(**group) : group.status());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace trainkit::test
