#pragma once
/// Converts a StateDict to state.json and back, without loss. docs/formats/checkpoint.md specifies the format.

#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "trainkit/core/state_dict.h"

namespace trainkit::detail {

/// Prefix of the trained weights in a checkpoint with averages, see Note [Averages in a checkpoint].
inline constexpr std::string_view kLivePrefix = "live.";
inline std::string live_name(const std::string& weight) { return std::string(kLivePrefix) + weight; }

/// Converts a state to JSON. kInvalidArgument names an entry that cannot be written: a tensor without data in memory,
/// or a name that is not UTF-8.
absl::StatusOr<std::string> state_to_json(const StateDict& state);

/// Parses state.json. Errors (exit code 5) name the entry of the file `path`.
absl::StatusOr<StateDict> state_from_json(std::string_view text, const std::string& path);

}  // namespace trainkit::detail
