#pragma once
// The commands of a trainer on its command line. Internal to run_app.

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"

namespace trainkit {

/// The command line of a training, or of what plans or measures one.
struct TrainerLine {
  TrainerLine(App& app, ProgramInfo program);

  /// Parses the words, and sets the defaults that depend on the device. `machine` is set for a request that needs it.
  absl::StatusOr<Request> parse(const std::vector<std::string>& words);
  /// Checks the flags and the rules between them. Call it after parse().
  absl::Status check(const ProgramMode& mode);

  App& app;
  RunOptions run = {};
  ConfigParser parser;
  MachineInfo machine = {};
  at::Device device = at::kCPU;
};

/// The commands of the application, and those that every trainer has.
std::vector<AppCommand> all_commands(App& app);

/// `PROGRAM plan`: predicts memory, batch and time of a run.
AppCommand plan_command(App& app);
/// `PROGRAM benchmark`: measures loader, step and both.
AppCommand benchmark_command(App& app);

/// Runs the command of `program` that the first word names and returns its exit code; nullopt without such a word.
/// cli.positional (exit code 2) for a word that names no command.
absl::StatusOr<std::optional<int>> run_command(const std::string& program, const std::vector<AppCommand>& commands,
                                               int argc, const char* const* argv);

/// Lets each command print its part of the script of --completion, which is among `words`.
void complete_commands(const std::vector<AppCommand>& commands, const std::vector<std::string>& words);

/// Runs --make_demo_data. Refuses a folder that is not empty: demo data replace no file.
absl::StatusOr<int> make_demo_data(App& app, const ConfigParser& parser, const RunOptions& run);

/// Adds the version, and the headings and the most used of the shared flags, to the description of a program.
ProgramInfo shared_help(ProgramInfo program);

}  // namespace trainkit
