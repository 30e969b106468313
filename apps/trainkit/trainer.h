#pragma once
/// The trainers beside this program, as child processes.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::tool {

/// How a program ended: its exit code (1 if a signal killed it), what it wrote to stdout, the first 64 KiB of stderr.
struct Ended {
  int code = 0;
  std::string output = {}, errors = {};
};

/// Runs `trainkit-<app>` from beside this program with `flags`, without a shell, and reads all that it writes. An error
/// of exit code 2, blamed on --app of `parser`, if there is no such trainer.
absl::StatusOr<Ended> run_trainer(const ConfigParser& parser, const std::string& app,
                                  const std::vector<std::string>& flags);

}  // namespace trainkit::tool
