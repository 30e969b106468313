#pragma once
/// The subcommands of the program `trainkit`: each is one function in a file of its own, listed in main.cpp.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::tool {

/// Words after the subcommand's name, those after "--" apart: they belong to another program.
struct Arguments {
  std::vector<std::string> flags = {};
  /// What follows "--"; empty if nothing does.
  std::vector<std::string> program = {};
};

/// A subcommand. Its function returns the exit code; errors are Status with an Error.
struct Command {
  std::string name = {};
  /// One line for `trainkit --help`.
  std::string summary = {};
  absl::StatusOr<int> (*run)(const Arguments& arguments) = nullptr;
};

/// One function per subcommand.
absl::StatusOr<int> launch_command(const Arguments& arguments);
absl::StatusOr<int> doctor_command(const Arguments& arguments);
absl::StatusOr<int> plan_command(const Arguments& arguments);
absl::StatusOr<int> scale_command(const Arguments& arguments);
absl::StatusOr<int> inspect_command(const Arguments& arguments);
absl::StatusOr<int> export_command(const Arguments& arguments);
absl::StatusOr<int> verify_resume_command(const Arguments& arguments);

/// Reads the flags. Prints what was asked for instead of a run, the help or the versions; false then.
absl::StatusOr<bool> parse_or_print(ConfigParser& parser, const Arguments& arguments);

/// Writes to stdout at once, so that the order with stderr is kept.
void print(const std::string& text);

/// The folder of this program and of the trainers: build/bin, or bin of an installed trainkit.
std::string program_folder();

/// Runs the subcommand that the first word names, or prints the help. `commands` is the whole tool.
absl::StatusOr<int> dispatch(const std::vector<std::string>& words, const std::vector<Command>& commands);

}  // namespace trainkit::tool
