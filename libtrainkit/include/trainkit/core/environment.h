#pragma once
/// The environment variables of the process, as a value that functions take: what they make of it can be tried on any.

#include <map>
#include <string>

namespace trainkit {

/// Environment variables by name.
using EnvironmentVariables = std::map<std::string, std::string, std::less<>>;

/// Those of this process, as they are now. No other thread may change them meanwhile.
EnvironmentVariables environment_variables();

}  // namespace trainkit
