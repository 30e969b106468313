#pragma once
/// Runs of the examples in folders, for comparison.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/runs.h"
#include "test_util.h"

namespace trainkit::test {

/// Name of the checkpoint that a resume would read, "step-..."; empty without one.
inline std::string latest(const std::string& folder) {
  const std::vector<std::string> lines = split_lines(read_text(folder + "/checkpoints/latest"));
  return lines.empty() ? "" : lines.front();
}

/// Its step; 0 without one.
inline int64_t last_saved(const std::string& folder) {
  const std::string name = latest(folder);
  return name.empty() ? 0 : std::stoll(name.substr(5));
}

/// Its files: weights, optimizers and state.
inline std::string final_bytes(const std::string& folder) {
  const std::string name = latest(folder);
  return name.empty() ? "" : name + checkpoint_bytes(folder, name.substr(5));
}

/// Steps that the last start of an example ran, of its line "300 steps, 200 of them in this start"; -1 without one.
inline int64_t steps_of_start(const std::string& output) {
  const size_t end = output.find(" of them in this start");
  if (end == std::string::npos) return -1;
  return std::stoll(output.substr(output.rfind(' ', end - 1)));
}

}  // namespace trainkit::test
