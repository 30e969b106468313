#pragma once
// Starts programs on simulated devices.
#include <string>
#include <vector>

#include "apps/program.h"

namespace trainkit::test {

/// This process's environment with the simulated device and its `settings`.
inline std::vector<std::string> simulated(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"LD_PRELOAD=" CUDA_SIM_LIBRARY, "LD_LIBRARY_PATH=" CUDA_SIM_FOLDER};
  for (char** variable = environ; *variable; ++variable) all.emplace_back(*variable);
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

}  // namespace trainkit::test
