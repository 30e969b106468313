#pragma once
/// Runs of the examples in folders, for comparison.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/runs.h"

namespace trainkit::test {

/// Names of the checkpoints of a run, oldest first: "step-...".
inline std::vector<std::string> checkpoints_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;  // no folder is no checkpoint
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints", none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Step of the newest checkpoint; 0 without one.
inline int64_t last_saved(const std::string& folder) {
  const std::vector<std::string> names = checkpoints_of(folder);
  return names.empty() ? 0 : std::stoll(names.back().substr(5));
}

/// Files of the newest checkpoint: weights, optimizers and state.
inline std::string final_bytes(const std::string& folder) {
  const std::vector<std::string> names = checkpoints_of(folder);
  return names.empty() ? "" : names.back() + checkpoint_bytes(folder, names.back().substr(5));
}

/// Steps that the last start of an example ran, of its line "300 steps, 200 of them in this start"; -1 without one.
inline int64_t steps_of_start(const std::string& output) {
  const size_t end = output.find(" of them in this start");
  if (end == std::string::npos) return -1;
  return std::stoll(output.substr(output.rfind(' ', end - 1)));
}

}  // namespace trainkit::test
