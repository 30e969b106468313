#pragma once
/// Words of a command line that belong to no flag: files.

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainkit/command.h"

namespace trainkit::tool {

/// Takes the words before the first flag, or, if there are none, the `names.size()` words at the end, out of
/// `arguments`. An error (exit code 2) unless there are as many as `names`, which it lists. With --help or --version
/// there may be none.
absl::StatusOr<std::vector<std::string>> take_words(Arguments& arguments, const std::vector<std::string>& names);

}  // namespace trainkit::tool
