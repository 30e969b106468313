#pragma once
/// Declares the subcommands of the program `trainkit`. Each is one function in its own file; main.cpp lists them.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::tool {

/// Words after the subcommand's name, split at "--".
struct Arguments {
  /// Words before "--": the subcommand's own.
  std::vector<std::string> flags = {};
  /// Words after "--": another program, with its flags, or flags for a trainer. Empty without "--".
  std::vector<std::string> program = {};
};

/// Describes a subcommand. `run` returns the exit code, or a Status that holds an Error.
struct Command {
  std::string name = {};
  /// One line for `trainkit --help`.
  std::string summary = {};
  absl::StatusOr<int> (*run)(const Arguments& arguments) = nullptr;
};

// One function per subcommand.
absl::StatusOr<int> launch_command(const Arguments& arguments);
absl::StatusOr<int> doctor_command(const Arguments& arguments);
absl::StatusOr<int> plan_command(const Arguments& arguments);
absl::StatusOr<int> scale_command(const Arguments& arguments);
absl::StatusOr<int> inspect_command(const Arguments& arguments);
absl::StatusOr<int> export_command(const Arguments& arguments);
absl::StatusOr<int> verify_resume_command(const Arguments& arguments);
absl::StatusOr<int> report_command(const Arguments& arguments);
absl::StatusOr<int> watch_command(const Arguments& arguments);

/// Parses the flags. Prints the help, the versions or the configuration if a flag asks for it; returns false then.
absl::StatusOr<bool> parse_or_print(ConfigParser& parser, const Arguments& arguments);

/// Writes `text` to stdout and flushes it, so that it keeps its order with stderr.
void print(const std::string& text);

/// Returns the folder of this program and of the trainers: build/bin, or bin of an installed trainkit.
std::string program_folder();

/// Runs the subcommand that the first word names, or prints the help. `commands` lists every subcommand.
absl::StatusOr<int> dispatch(const std::vector<std::string>& words, const std::vector<Command>& commands);

}  // namespace trainkit::tool
