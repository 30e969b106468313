#pragma once
// Changes that the program makes to a run between steps: learning rates, frozen parameters.

#include <absl/status/status.h>

#include <optional>
#include <string_view>

#include "train/run/fit_context.h"

namespace trainkit {

/// See Session::set_lr; without `group`: all groups of the player.
absl::Status set_lr(FitContext& run, std::string_view player, std::optional<std::string_view> group, double lr);
/// See Session::set_trainable.
absl::Status set_trainable(FitContext& run, std::string_view pattern, bool trainable);
/// Freezes and thaws what set_trainable() has, also in the run that this one resumes.
void apply_trainable(FitContext& run);

}  // namespace trainkit
