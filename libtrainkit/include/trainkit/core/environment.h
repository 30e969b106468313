#pragma once
/// The environment variables of the process, as a value that functions take: what they make of it can be tried on any.

#include <absl/status/status.h>

#include <map>
#include <string>

namespace trainkit {

/// Environment variables by name.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

/// Those of this process, as they are now. No other thread may change them meanwhile.
EnvironmentVariables environment_variables();

/// What in the environment would break a run later and in other words, as an error of exit code 2 (env.value) that
/// names it: OMP_NUM_THREADS that is no number from 1 to 4096 (or several, with commas), TMPDIR that is no folder, a
/// variable TRAINKIT_... that no program of ours reads (with the nearest name), a limit below 64 open files
/// (env.limit).
absl::Status check_environment(const EnvironmentVariables& variables = environment_variables());

}  // namespace trainkit
