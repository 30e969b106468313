#pragma once
/// Host memory available to this process.

#include <cstdint>
#include <string>

#include "trainkit/core/processors.h"

namespace trainkit {

/// Returns the memory of the machine, or of the control group (container) with the least available memory. Zeros if the
/// kernel does not report it. Reads several files of /proc and /sys: about ten microseconds.
HostMemory host_memory();

namespace detail {
/// Same from the text of /proc/meminfo and the groups that `membership` (the text of /proc/self/cgroup) names, in the
/// tree at `root`. Supports cgroup versions 1 and 2.
HostMemory host_memory(const std::string& meminfo, const std::string& root, const std::string& membership);
}  // namespace detail

}  // namespace trainkit
