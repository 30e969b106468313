#include "train/run/run_events.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/base/user_exception.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::Status RunEvents::call(const char* name, c10::function_ref<absl::Status(Events&)> event) {
  if (!receiver_) return absl::OkStatus();
  absl::Status status;
  try {
    status = event(*receiver_);
  } catch (...) {
    status = detail::status_from_user_exception("step " + std::to_string(run_.progress.step), name);
  }
  if (status.ok()) return status;
  if (absl::IsCancelled(status)) {
    host_.request_stop();
    return absl::OkStatus();
  }
  if (!error_of(status)) status = annotate(status, fmt::format("{} of step {}", name, run_.progress.step));
  if (!run_.group) return status;
  if (failed_.ok()) failed_ = std::move(status);
  return absl::OkStatus();
}

void RunEvents::begin_batch() {
  if (draws_) draws_->step_here();
}

void RunEvents::check_draws() {
  if (draws_ && failed_.ok()) failed_ = draws_->status();
}

std::function<void(std::string_view player)> RunEvents::gradient_reader() {
  if (!receiver_ || !receiver_->reads_gradients()) return nullptr;
  return [this](std::string_view player) {
    const absl::Status status = call("on_gradients", [&](Events& events) {
      return events.on_gradients(run_.progress.step + 1, player, run_.devices);
    });
    if (!status.ok()) throw absl::BadStatusOrAccess(status);
  };
}

absl::Status RunEvents::error() const {
  if (!failed_.ok()) return failed_;
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "dist.peer",
                    .problem = "an event failed on another rank; see its error"});
}

}  // namespace trainkit
