#pragma once
// The commands of a trainer on its command line. Internal to run_app.

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"

namespace trainkit {

/// Runs the command that the first word names and returns its exit code; nullopt without such a word. cli.positional
/// (exit code 2) for a word that names no command.
absl::StatusOr<std::optional<int>> run_command(const std::vector<AppCommand>& commands, int argc,
                                               const char* const* argv);

/// Lists the commands for --help.
std::string describe_commands(const std::vector<AppCommand>& commands, const std::string& program);

}  // namespace trainkit
