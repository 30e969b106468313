#pragma once
// The control groups (containers) that this process is in.

#include <functional>
#include <string>

namespace trainkit::detail {

/// The bytes of a file, which may be one of /proc or /sys; empty if it is not there.
std::string read_text(const std::string& path);

/// Calls `visit` with the folder of each group of `controller` ("cpu", "memory") that `membership` (the text of
/// /proc/self/cgroup) names in the tree at `root`, and of all groups above it: a limit of any of them holds. `version`
/// is 1 or 2.
void for_each_cgroup(const std::string& root, const std::string& membership, const std::string& controller,
                     const std::function<void(const std::string& folder, int version)>& visit);

}  // namespace trainkit::detail
