#pragma once
/// Isolates libraries that a damaged file can crash.

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace trainkit::detail {

/// Calls `work` in a forked copy of this process and returns its result; see Note [Reading in a forked copy]. A crash
/// in `work` does not affect this process.
///
/// The copy has only the calling thread, so `work` must not take a lock that another thread may hold. Its stderr is
/// discarded. It is killed with this process, and after five minutes of CPU time.
///
/// Blocks until `work` ends. Thread-safe. kDataLoss, with the cause, if `work` does not finish; kResourceExhausted if
/// fork fails.
absl::StatusOr<std::string> run_forked(const std::function<std::string()>& work);

}  // namespace trainkit::detail
