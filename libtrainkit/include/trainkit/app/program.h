#pragma once
/// What every program's main does: run, report, exit.

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// What the end of a program needs to know from its middle.
struct Program {
  /// Where error.json goes, once the folder is the run's own; empty: nowhere. Of several ranks the first writes it.
  std::string output_dir = {};
  /// The ranks, once they have met.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

/// Calls `body` and turns what it returns, or throws, into the exit code of the process. An error is told on stderr in
/// one line (and a hint), and written to `<output_dir>/error.json` if the program has set one. A rank's line begins
/// with
/// "[rank 1] "; the other ranks learn the reason, and so does the launcher (TORCHELASTIC_ERROR_FILE).
///
///   int main(int argc, char** argv) {
///     return trainkit::run_program([&](Program& program) -> absl::StatusOr<int> { ...; return 0; });
///   }
int run_program(const std::function<absl::StatusOr<int>(Program& program)>& body);

}  // namespace trainkit
