#pragma once
// What tells the file of a trainer from other programs.

#include <string_view>

namespace trainkit::detail {

/// Every program that links run_app() contains this text. `trainkit export` starts no other program whose name is in
/// the run.json of a run from elsewhere.
inline constexpr std::string_view kTrainerMark = "trainkit trainer: run_app";

}  // namespace trainkit::detail
