#pragma once
// Passes the events of a run to the program, and its answers to all ranks.

#include <absl/status/status.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <memory>
#include <string_view>

#include "train/run/fit_context.h"
#include "train/run/foreign_draws.h"
#include "train/run/host_requests.h"
#include "trainkit/train/session.h"

namespace trainkit {

/// Keeps the references. Used by the thread that steps.
class RunEvents {
 public:
  RunEvents(const FitOptions& fit, FitContext& run, HostRequests& host)
      : receiver_(fit.events), run_(run), host_(host), draws_(fit.watch_generators ? new ForeignDraws : nullptr) {}

  /// Calls an event. kCancelled becomes a request to stop. With several ranks an error is kept: has_failed() is this
  /// rank's vote in the next step, and error() that of all ranks after it.
  absl::Status call(const char* name, c10::function_ref<absl::Status(Events&)> event);
  /// Returns what calls on_gradients in a step; null if nobody wants it.
  std::function<void(std::string_view player)> gradient_reader();
  /// FitOptions::watch_generators: the calling thread may draw from the default generators from now on, and a draw of
  /// another thread is an error as one of an event is.
  void begin_batch();
  void check_draws();
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
  std::unique_ptr<ForeignDraws> draws_;
  absl::Status failed_;
};

}  // namespace trainkit
