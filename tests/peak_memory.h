#pragma once
/// Peak memory of a call: reset_peak_memory(), the call, peak_memory().

#include <cstdint>
#include <fstream>
#include <string>

namespace trainkit::test {

inline void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Peak resident set size since the last reset, in bytes.
inline int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

}  // namespace trainkit::test
