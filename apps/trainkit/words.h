#pragma once
/// Reads positional arguments, such as file names, from a command line.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/command.h"

namespace trainkit::tool {

/// Removes the positional arguments from `arguments` and returns them. They are the words before the first flag; if
/// there are none, the last `names.size()` words.
///
/// Returns an error of exit code 2 that lists `names` unless their number matches. With --help, --version or
/// --print_config they may be missing; the result is empty then.
absl::StatusOr<std::vector<std::string>> take_words(Arguments& arguments, const std::vector<std::string>& names);

/// Removes the words before the first flag and returns them: at least one `name`, except with --help and the like.
absl::StatusOr<std::vector<std::string>> take_all_words(Arguments& arguments, const std::string& name);

/// Returns the runs that the folders contain or are (find_runs), each once.
absl::StatusOr<std::vector<std::string>> runs_of(const std::vector<std::string>& folders);

}  // namespace trainkit::tool
