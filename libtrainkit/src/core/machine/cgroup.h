#pragma once
/// The control groups (containers) of this process.

#include <functional>
#include <string>

namespace trainkit::detail {

/// Reads a whole file, which may be in /proc or /sys; empty if it does not exist.
std::string read_text(const std::string& path);

/// Calls `visit` with the folder of a control group and of each of its ancestors, because a limit of any of them
/// applies. The group is the one of `controller` ("cpu", "memory") that `membership` (the text of /proc/self/cgroup)
/// names, in the tree at `root`. `version` is 1 or 2.
void for_each_cgroup(const std::string& root, const std::string& membership, const std::string& controller,
                     const std::function<void(const std::string& folder, int version)>& visit);

}  // namespace trainkit::detail
