#pragma once
// Finds threads that draw from LibTorch's default generators during a run.

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace trainkit {

/// While it lives, notes operations that draw without a generator in a thread that no run uses. A run uses the thread
/// that steps, threads that compute a replica, and those of a backward pass. Watches all threads of the process.
/// Several runs at a time allow each other's draws.
class ForeignDraws {
 public:
  /// The calling thread steps.
  ForeignDraws();
  ~ForeignDraws();
  ForeignDraws(const ForeignDraws&) = delete;
  ForeignDraws& operator=(const ForeignDraws&) = delete;

  /// The calling thread steps from now on.
  void step_here();
  /// Returns an error (exit code 2) that names the first foreign operation.
  absl::Status status() const;

 private:
  class All;

  uint64_t thread_;  // guarded by the mutex of All, as operation_
  std::string operation_;
};

}  // namespace trainkit
