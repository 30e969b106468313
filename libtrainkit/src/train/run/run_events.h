#pragma once
// Passes the events of a run to the program, and its answers to all ranks.

#include <absl/status/status.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <string_view>

#include "train/run/fit_context.h"
#include "train/run/host_requests.h"
#include "trainkit/train/session.h"

namespace trainkit {

/// Keeps the references. Used by the thread that steps.
class RunEvents {
 public:
  /// @param receiver may be null
  RunEvents(Events* receiver, FitContext& run, HostRequests& host) : receiver_(receiver), run_(run), host_(host) {}

  /// Calls an event. kCancelled becomes a request to stop. With several ranks an error is kept: has_failed() is this
  /// rank's vote in the next step, and error() that of all ranks after it.
  absl::Status call(const char* name, c10::function_ref<absl::Status(Events&)> event);
  /// Returns what calls on_gradients in a step; null if nobody wants it.
  std::function<void(std::string_view player)> gradient_reader();
  bool has_receiver() const { return receiver_ != nullptr; }

  bool has_failed() const { return !failed_.ok(); }
  /// The error of an event on this rank; OK if there is none.
  const absl::Status& failed() const { return failed_; }
  /// The error of all ranks after an event has failed on one of them.
  absl::Status error() const;

 private:
  Events* receiver_;
  FitContext& run_;
  HostRequests& host_;
  absl::Status failed_;
};

}  // namespace trainkit
