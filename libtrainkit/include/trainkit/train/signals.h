#pragma once
/// Turns signals into flags that the training loop checks between steps.

namespace trainkit {

/// Handles SIGINT, SIGTERM and SIGUSR1 during its lifetime. SIGINT and SIGTERM ask the loop to stop after the current
/// step; SIGUSR1 asks it to save and continue. The handlers only set a flag.
///
/// A second SIGINT or SIGTERM ends the process at once with exit code 128 + its number and runs no cleanup; the last
/// saved checkpoint remains valid. The destructor restores the previous handlers. Only one SignalWatch may exist at a
/// time (else c10::Error).
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Returns SIGINT or SIGTERM if one was received since construction, else 0.
  static int stop_signal();
  /// Returns whether SIGUSR1 was received since the last call, and resets the flag.
  static bool take_save_request();
};

}  // namespace trainkit
