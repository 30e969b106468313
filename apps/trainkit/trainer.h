#pragma once
/// Finds and runs trainers: of this toolkit and of users.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::tool {

/// Returns the program of --app: a path if `app` has a slash, else the program trainkit-<app> or <app> in the folder of
/// this program, then in those of PATH. Error of exit code 2 that names --app of `parser` if there is none.
absl::StatusOr<std::string> find_trainer(const ConfigParser& parser, const std::string& app);

/// Returns the program that made a run, by the name in its run.json, from the same folders. A run folder from elsewhere
/// starts no other program: the name is never a path, and the program must be one with run_app(). Error of exit code 2
/// if there is none.
absl::StatusOr<std::string> find_trainer_of(const std::string& run);

/// Replaces this process by a program. Returns only an error, of exit code 2.
absl::Status become(std::vector<std::string> words);

/// Result of a child process.
struct Ended {
  /// Exit code; 1 if a signal killed the process.
  int code = 0;
  /// All of stdout, and the first 64 KiB of stderr.
  std::string output = {}, errors = {};
};

/// Runs a program and reads its output. Uses no shell. Blocks until it ends. After a second it reports on stderr that
/// the program runs: on a terminal with the seconds, else as one line.
///
/// @return The result, whatever its exit code, or an error if it cannot be started.
absl::StatusOr<Ended> run_trainer(std::vector<std::string> words);

}  // namespace trainkit::tool
