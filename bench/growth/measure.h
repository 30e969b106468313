#pragma once
/// Measures the rows of `./dev bench --growth`.

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "trainkit/core/status.h"

namespace trainkit::bench {

inline int64_t field_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  return 0;
}

inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline void require(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

/// Runs `work` and prints its cost. `per` divides the seconds: the number of repetitions or of ranks.
inline void measure(const std::function<void()>& work, double per = 1) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins at the memory of now
  const int64_t before = field_of("/proc/self/status", "VmHWM:"), read = field_of("/proc/self/io", "rchar:");
  const double start = processor_seconds();
  work();
  fmt::print("{{\"seconds\": {:.6f}, \"peak_mb\": {:.1f}, \"read_mb\": {:.1f}}}\n", (processor_seconds() - start) / per,
             static_cast<double>(field_of("/proc/self/status", "VmHWM:") - before) / 1024,
             static_cast<double>(field_of("/proc/self/io", "rchar:") - read) / 1048576);
}

/// Runs the row and the size of the command line.
inline int run_row(int count, char** words, const std::map<std::string, void (*)(int64_t, const std::string&)>& rows) {
  const auto row = count == 4 ? rows.find(words[1]) : rows.end();
  if (row == rows.end()) {
    std::cerr << "usage: " << words[0] << " ROW SIZE FOLDER\n";
    return 2;
  }
  row->second(std::stoll(words[2]), words[3]);
  return 0;
}

}  // namespace trainkit::bench
