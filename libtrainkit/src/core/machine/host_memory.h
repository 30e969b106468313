#pragma once
/// Host memory available to this process.

#include <cstdint>
#include <string>

namespace trainkit {

/// Memory of the machine, or of the control group (container) that leaves the least.
struct HostMemory {
  int64_t total_bytes = 0;
  /// What can still be had without swapping; files that the kernel keeps cached count as free.
  int64_t available_bytes = 0;
  /// Swap space that is left; 0 in a control group with a limit.
  int64_t free_swap_bytes = 0;
};

/// Returns the memory of the machine, or of the control group (container) with the least available memory. Zeros if the
/// kernel does not report it. Reads several files of /proc and /sys: about ten microseconds.
HostMemory host_memory();

namespace detail {
/// Same from the text of /proc/meminfo and the groups that `membership` (the text of /proc/self/cgroup) names, in the
/// tree at `root`. Supports cgroup versions 1 and 2.
HostMemory host_memory(const std::string& meminfo, const std::string& root, const std::string& membership);
}  // namespace detail

}  // namespace trainkit
