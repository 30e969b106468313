#pragma once
/// Commands that measure speed without data: trainkit-hsi benchmark, sweep, quick_perf_test.

#include <vector>

#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Returns the commands. They print their results. Errors: those of ConfigParser, exit code 6 for --json.
std::vector<AppCommand> benchmark_commands();

}  // namespace trainkit::hsi
