#pragma once
/// Signals as flags that the training loop looks at between steps.

namespace trainkit {

/// While it lives, SIGINT and SIGTERM ask the loop to stop after the step it is in, and SIGUSR1 asks it to save and go
/// on. The handlers only set a flag. A second SIGINT or SIGTERM ends the process at once with 128 + its number, without
/// running anything: the last checkpoint that was saved stays whole. The previous handlers are restored at the end.
/// At most one may live at a time (c10::Error otherwise).
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// SIGINT or SIGTERM if one has come since construction, else 0.
  static int stop_signal();
  /// Whether SIGUSR1 has come since the last call.
  static bool take_save_request();
};

}  // namespace trainkit
