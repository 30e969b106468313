#include "trainkit/train/session.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "train/run/host_changes.h"
#include "train/run/run_state.h"
#include "train/run/session_impl.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

absl::Status misuse(const char* problem, const char* hint) {
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.session", .problem = problem, .hint = hint},
                   absl::StatusCode::kFailedPrecondition);
}

/// Returns which call of fit wrote the checkpoint to resume from. One that cannot be read is left to the run, which
/// reports it.
int64_t fit_of_checkpoint(const TrainerOptions& options, const EarlierFits& fits) {
  const auto found = resolve_checkpoint(options.resume, options.output_dir);
  const auto state = found.ok() ? load_checkpoint_state(*found) : found.status();
  return state.ok() ? saved_fit(*state) : fits.count;
}

}  // namespace

Events::~Events() = default;

absl::Status Session::Impl::begin(BatchSource* source, LossFunction loss, const FitOptions& options) {
  if (trainer_.has_session_) {
    return misuse("this Trainer has a session that has not ended", "finish() it, or destroy it, before the next one");
  }
  trainer_.has_session_ = is_open_ = true;
  options_ = trainer_.options_;
  logger_ = options.logger;
  if (!options_.resume.empty()) {
    const int64_t saved = fit_of_checkpoint(options_, trainer_.fits_);
    if (saved > trainer_.fits_.count) {  // this run had ended before the checkpoint of a later one was written
      ++trainer_.fits_.count;
      if (logger_) {
        logger_->print(fmt::format("fit {} had ended before the checkpoint, which is of fit {}: nothing to do",
                                   trainer_.fits_.count, saved + 1));
      }
      result_.emplace();
      close();
      return absl::OkStatus();
    }
    if (saved < trainer_.fits_.count) options_.resume.clear();
  }
  FitOptions fit = options;
  if (options.open_logger) {
    fit.open_logger = [this, open = options.open_logger]() -> absl::StatusOr<Logger*> {
      TRAINKIT_ASSIGN_OR_RETURN(logger_, open());
      return logger_;
    };
  }
  return guard([&] {
    if (options_.handle_signals) signals_.emplace();
    run_ = std::make_unique<TrainingRun>(trainer_.devices_, trainer_.trained_, options_, source, std::move(loss), fit,
                                         trainer_.fits_);
    return run_->begin();
  });
}

absl::StatusOr<bool> Session::Impl::step(const Batch* batch) {
  bool goes_on = false;
  TRAINKIT_RETURN_IF_ERROR(guard([&]() -> absl::Status {
    if (result_) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(goes_on, batch ? run_->step(*batch) : run_->step());
    return absl::OkStatus();
  }));
  return goes_on;
}

absl::StatusOr<TrainerResult> Session::Impl::finish() {
  TRAINKIT_RETURN_IF_ERROR(guard([&]() -> absl::Status {
    if (result_) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(result_, run_->finish());
    close();
    return absl::OkStatus();
  }));
  return *result_;
}

absl::Status Session::Impl::between_steps(c10::function_ref<absl::Status(TrainingRun&)> call) {
  absl::Status status;
  TRAINKIT_RETURN_IF_ERROR(guard([&]() -> absl::Status {
    if (!run_) return absl::OkStatus();
    try {
      status = call(*run_);
    } catch (const c10::Error& error) {
      status =
          to_status({.exit_code = ExitCode::kUsage, .id = "train.session", .problem = error.what_without_backtrace()});
    }
    return absl::OkStatus();
  }));
  return status;
}

absl::Status Session::Impl::guard(c10::function_ref<absl::Status()> call) {
  if (is_busy_.exchange(true)) {
    return misuse("a call of this session is in progress, in another thread or around an event",
                  "call step() and finish() one at a time, and not in an event");
  }
  if (error_.ok()) {
    try {
      error_ = call();
    } catch (...) {
      error_ = status_from_current_exception();
    }
    if (!error_.ok()) {
      has_failed_ = true;
      explain_out_of_memory(error_);
      close();
    }
  }
  is_busy_ = false;
  return error_;
}

/// Prints the memory of this process's GPUs, and advice. Other ranks cannot be asked any more: each prints LibTorch's
/// message, which has the memory of its GPU.
void Session::Impl::explain_out_of_memory(const absl::Status& status) {
  const auto error = error_of(status);
  if (!logger_ || !absl::IsResourceExhausted(status) || (error && error->id != "memory.exhausted")) return;
  const auto memory = describe_gpu_memory(trainer_.devices_, nullptr);
  if (memory.ok() && !memory->empty()) logger_->print(*memory);
  if (options_.explain_out_of_memory) logger_->print(options_.explain_out_of_memory());
}

Progress Session::Impl::progress() const {
  Progress progress = run_ ? run_->host().progress() : Progress{.has_ended = true};
  progress.has_ended |= has_failed_;
  return progress;
}

void Session::Impl::close() {
  if (!std::exchange(is_open_, false)) return;
  trainer_.has_session_ = false;
  signals_.reset();
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

absl::StatusOr<bool> Session::step() { return impl_->step(nullptr); }
absl::StatusOr<bool> Session::step(const Batch& batch) { return impl_->step(&batch); }
absl::StatusOr<TrainerResult> Session::finish() { return impl_->finish(); }

absl::Status Session::set_lr(std::string_view player, double lr) {
  return impl_->between_steps(
      [&](TrainingRun& run) { return trainkit::set_lr(run.context(), player, std::nullopt, lr); });
}
absl::Status Session::set_lr(std::string_view player, std::string_view group, double lr) {
  return impl_->between_steps([&](TrainingRun& run) { return trainkit::set_lr(run.context(), player, group, lr); });
}
absl::Status Session::set_trainable(std::string_view pattern, bool trainable) {
  return impl_->between_steps(
      [&](TrainingRun& run) { return trainkit::set_trainable(run.context(), pattern, trainable); });
}

void Session::request_save() {
  if (impl_->run()) impl_->run()->host().request_save();
}
void Session::request_stop() {
  if (impl_->run()) impl_->run()->host().request_stop();
}
Progress Session::progress() const { return impl_->progress(); }

}  // namespace trainkit
