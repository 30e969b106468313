#include "core/machine/host_memory.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "core/machine/cgroup.h"

namespace trainkit {
namespace {

/// Returns the number after `name` in lines of "name number"; -1 if there is none. A limit of "max" counts as none.
int64_t number_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    int64_t number = -1;
    if (words >> first && first == name) return words >> number ? number : -1;
  }
  return -1;
}

int64_t first_number(const std::string& path) { return number_of("it " + detail::read_text(path), "it"); }

}  // namespace

namespace detail {

HostMemory host_memory(const std::string& meminfo, const std::string& root, const std::string& membership) {
  HostMemory memory{.total_bytes = std::max<int64_t>(number_of(meminfo, "MemTotal:"), 0) << 10,
                    .available_bytes = std::max<int64_t>(number_of(meminfo, "MemAvailable:"), 0) << 10,
                    .free_swap_bytes = std::max<int64_t>(number_of(meminfo, "SwapFree:"), 0) << 10};
  const int64_t machine = memory.total_bytes;
  for_each_cgroup(root, membership, "memory", [&](const std::string& folder, int version) {
    const bool is_v2 = version == 2;
    const int64_t limit = first_number(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const int64_t used = first_number(folder + (is_v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (limit <= 0 || used < 0 || limit >= machine) return;  // version 1 reports a huge number if there is no limit
    // The kernel reclaims inactive file pages before it enforces the limit, so they count as available.
    const std::string stat = read_text(folder + "/memory.stat");
    const int64_t cached = std::max<int64_t>(number_of(stat, is_v2 ? "inactive_file" : "total_inactive_file"), 0);
    const int64_t available = std::clamp<int64_t>(limit - used + cached, 0, limit);
    if (available < memory.available_bytes) memory = {.total_bytes = limit, .available_bytes = available};
  });
  return memory;
}

}  // namespace detail

HostMemory host_memory() {
  return detail::host_memory(detail::read_text("/proc/meminfo"), "/sys/fs/cgroup",
                             detail::read_text("/proc/self/cgroup"));
}

}  // namespace trainkit
