#pragma once
/// How much memory the machine has for this process.

#include <cstdint>
#include <string>

#include "trainkit/core/processors.h"

namespace trainkit {

/// That of the machine, or of the control group (container) that leaves the least. Zeros where the kernel does not
/// tell. Reads a few files of /proc and /sys: some ten microseconds.
HostMemory host_memory();

namespace detail {
/// From the text of /proc/meminfo and the groups that `membership` (the text of /proc/self/cgroup) names, in the tree
/// at `root`. Versions 1 and 2.
HostMemory host_memory(const std::string& meminfo, const std::string& root, const std::string& membership);
}  // namespace detail

}  // namespace trainkit
