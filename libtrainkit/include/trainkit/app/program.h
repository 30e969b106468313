#pragma once
/// Runs a program's main function and reports its errors.

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>

#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// State used for error reporting at exit.
struct Program {
  /// Folder for error.json; set it once the folder belongs to the run. Empty: no file. With several ranks the first one
  /// writes it.
  std::string output_dir = {};
  /// Ranks, once they are connected.
  std::shared_ptr<ProcessGroup> group = nullptr;
};

/// Calls `body` and returns the exit code of the process, from its result or its exception. Prints an error on stderr
/// as one line (and a hint), and writes it to `<output_dir>/error.json` if `output_dir` is set. With several ranks the
/// line begins with "[rank 1] ", and the other ranks and the launcher (TORCHELASTIC_ERROR_FILE) receive the reason.
///
///   int main(int argc, char** argv) {
///     return trainkit::run_program([&](Program& program) -> absl::StatusOr<int> { ...; return 0; });
///   }
int run_program(const std::function<absl::StatusOr<int>(Program& program)>& body);

/// Prints a line on stdout and flushes it.
void print_line(const std::string& line);

}  // namespace trainkit
