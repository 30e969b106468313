#pragma once
/// What every program's main does: run, report, exit.

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace trainkit {

/// What the end of a program needs to know from its middle.
struct Program {
  /// Where error.json goes, once the folder is the run's own; empty: nowhere.
  std::string output_dir = {};
};

/// Calls `body` and turns what it returns, or throws, into the exit code of the process. An error is told on stderr in
/// one line (and a hint), and written to `<output_dir>/error.json` if the program has set one.
///
///   int main(int argc, char** argv) {
///     return trainkit::run_program([&](Program& program) -> absl::StatusOr<int> { ...; return 0; });
///   }
int run_program(const std::function<absl::StatusOr<int>(Program& program)>& body);

}  // namespace trainkit
