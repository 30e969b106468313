#pragma once
/// Converts a StateDict to state.json and back, without loss. docs/formats/checkpoint.md specifies the format.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "trainkit/core/state_dict.h"

namespace trainkit::detail {

/// Converts a state to JSON. kInvalidArgument names an entry that cannot be written: a tensor without data in memory,
/// or a name that is not UTF-8.
absl::StatusOr<std::string> state_to_json(const StateDict& state);

/// Parses state.json. Errors (exit code 5) name the entry of the file `path`.
absl::StatusOr<StateDict> state_from_json(std::string_view text, const std::string& path);

}  // namespace trainkit::detail
