#pragma once
/// state.json: a StateDict as JSON, exactly. The format is docs/formats/checkpoint.md.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "trainkit/core/state_dict.h"

namespace trainkit::detail {

/// kInvalidArgument names an entry that cannot be written (a tensor without data in memory, a name that is no UTF-8).
absl::StatusOr<std::string> state_to_json(const StateDict& state);

/// Errors are of exit code 5 and name the entry of the file `path`.
absl::StatusOr<StateDict> state_from_json(std::string_view text, const std::string& path);

}  // namespace trainkit::detail
