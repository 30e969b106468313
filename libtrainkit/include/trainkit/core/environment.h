#pragma once
/// The environment variables of the process as a value, so that functions can be tested with any environment.

#include <absl/status/status.h>

#include <map>
#include <string>

namespace trainkit {

/// Environment variables by name.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

/// Copies this process's environment. No other thread may change it during the call.
EnvironmentVariables environment_variables();

/// Checks the environment for settings that would break a run later with an unclear message. Returns an error of exit
/// code 2 that names the variable (env.value):
///   OMP_NUM_THREADS  is not a number from 1 to 4096, nor several such numbers separated by commas;
///   TMPDIR           is not a folder;
///   TRAINKIT_...     is a variable that no program of this project reads (with the nearest known name).
/// A limit below 64 open files is an error too (env.limit).
absl::Status check_environment(const EnvironmentVariables& variables = environment_variables());

}  // namespace trainkit
