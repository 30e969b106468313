#pragma once
/// Runs a trainer from this program's folder as a child process.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::tool {

/// Result of a child process.
struct Ended {
  /// Exit code; 1 if a signal killed the process.
  int code = 0;
  /// All of stdout, and the first 64 KiB of stderr.
  std::string output = {}, errors = {};
};

/// Runs `trainkit-<app>` from this program's folder with `flags` and reads its output. Uses no shell. Blocks until the
/// trainer ends. After a second it reports on stderr that the trainer runs: on a terminal with the seconds, else as one
/// line.
///
/// @return The result, whatever its exit code. Or an error of exit code 2 if there is no such trainer (naming --app of
///   `parser`) or it cannot be started.
absl::StatusOr<Ended> run_trainer(const ConfigParser& parser, const std::string& app,
                                  const std::vector<std::string>& flags);

}  // namespace trainkit::tool
