#pragma once
// Checks of a command line that run_app() makes before it opens any data. Internal to App.

#include <absl/status/status.h>

#include "trainkit/app/app.h"

namespace trainkit::detail {

/// Refuses flags that have no effect on what the command line asks for (cli.unused).
absl::Status check_flags(const ProgramMode& mode, const ConfigParser& parser, const RunOptions& run,
                         const MachineInfo& machine);

/// Creates the folder of a run, and checks those of repeats, which are created when their training starts. A dry run
/// tries all places of the run instead.
absl::Status prepare_folders(const App& app, const ConfigParser& parser, const RunOptions& run);

}  // namespace trainkit::detail
