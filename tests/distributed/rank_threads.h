#pragma once
/// Ranks as threads of the test process.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "free_port.h"
#include "launch_of.h"
#include "trainkit/core/error.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit::test {

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
