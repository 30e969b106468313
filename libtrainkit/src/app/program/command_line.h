#pragma once
// The commands of a trainer on its command line. Internal to run_app.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"

namespace trainkit {

/// Runs the command that the first word names and returns its exit code; nullopt without such a word. cli.positional
/// (exit code 2) for a word that names no command.
absl::StatusOr<std::optional<int>> run_command(const std::vector<AppCommand>& commands, int argc,
                                               const char* const* argv);

/// Lets each command print its part of the script of --completion, which is among `words`.
void complete_commands(const std::vector<AppCommand>& commands, const std::vector<std::string>& words);

/// Runs --make_demo_data. Refuses a folder that is not empty: demo data replace no file.
absl::StatusOr<int> make_demo_data(App& app, const ConfigParser& parser, const RunOptions& run);

/// Adds the version, and the headings and the most used of the shared flags, to the description of a program.
ProgramInfo shared_help(ProgramInfo program);

}  // namespace trainkit
