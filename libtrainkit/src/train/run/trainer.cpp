#include "trainkit/train/trainer.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <string>
#include <utility>

#include "core/base/option_problems.h"
#include "train/run/session_impl.h"
#include "train/run/trainer_impl.h"
#include "train/step/step_precision.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

absl::Status check_options(const TrainerOptions& options, const DeviceReplicator& devices) {
  detail::OptionProblems problems;
  const std::string precision = detail::precision_problem(options.precision, devices);
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    problems.require(value >= least, name, fmt::format(">= {}", least), value);
  };
  at_least("max_epochs", options.max_epochs, 0);
  at_least("max_steps", options.max_steps, 0);
  at_least("max_time", options.max_time.count(), 0);
  at_least("grad_accum_steps", options.grad_accum_steps, 1);
  at_least("log_every", options.log_every, 0);
  at_least("keep_last", options.keep_last, 0);
  at_least("keep_every", options.keep_every, 0);
  at_least("early_stopping", options.early_stopping, 0);
  at_least("max_nonfinite", options.max_nonfinite, 1);
  const auto is_positive = [](const Interval& interval) { return interval || interval == 0; };
  problems.require(is_positive(options.eval_every) && is_positive(options.save_every), "an interval must be >= 0")
      .require(options.eval_every.time().count() == 0, "eval_every must be in steps or epochs: only saves may be timed")
      .require(options.keep_every == 0 || options.save_every, "keep_every needs save_every")
      .require(options.on_nonfinite != OnNonfinite::kRollback || options.save_every, "rollback needs save_every")
      .require(options.early_stopping == 0 || bool{options.eval_every}, "early_stopping needs eval_every")
      .require(!options.plateau || bool{options.eval_every}, "plateau needs eval_every")
      .require(detail::finite_not_negative(options.grad_clip), "grad_clip must be >= 0 and finite")
      .require(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay must be in [0, 1)")
      .require(options.save_every == 0 || !options.output_dir.empty(), "save_every needs an output_dir")
      .require(options.resume != "latest" || !options.output_dir.empty(), "resume 'latest' needs an output_dir")
      .require(options.cuda_graph != CudaGraph::kOn || devices.device().is_cuda(), "cuda_graph on needs a CUDA device")
      .require(precision.empty(), precision);
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.options", .problem = problems.text()});
}

/// Checks what only players have. Their parameters are checked where they are divided.
absl::Status check_players(const std::vector<Player>& players, const TrainerOptions& options) {
  detail::OptionProblems problems;
  problems.require(!players.empty() && players.front().optimizer != nullptr, "there must be a player with an optimizer")
      .require(options.schedule == nullptr, "schedule belongs to a player: set Player::schedule")
      .require(!options.plateau, "plateau is for one optimizer")
      .require(options.grad_clip == 0, "grad_clip belongs to a player: set Player::grad_clip")
      .require(options.ema_decay == 0, "ema_decay belongs to a player: set Player::ema_decay");
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.players", .problem = problems.text()},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status check_losses(const Trained& trained, const LossFunction& loss, const FitOptions& fit) {
  const bool has_players = !trained.players.empty();
  std::string problem;
  if (has_players && loss) problem = "players have their losses: call fit(source, options) or begin(source, options)";
  if (!has_players && !loss) problem = "the loss function is missing: call fit(source, loss)";
  if (has_players && fit.validation && !fit.validation_loss) problem = "players need FitOptions::validation_loss";
  if (problem.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.players", .problem = problem},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status check_fit(const FitOptions& fit, const TrainerOptions& options, const BatchSource* source) {
  const auto refuse = [](const char* field, std::string problem, std::string got, std::string hint) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.options",
                      .field = field,
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .hint = std::move(hint)});
  };
  const bool has_epochs = source && source->epoch_length();
  if (options.max_epochs > 0 && !has_epochs) {
    return refuse("max_epochs", "counts epochs, which the source of batches does not have",
                  std::to_string(options.max_epochs), "use max_steps, or end the source");
  }
  if (has_epochs && options.max_epochs == 0 && options.max_steps == 0) {
    return refuse("", "max_epochs or max_steps must be given: the source of batches has epochs and does not end", "",
                  "");
  }
  if (source && fit.validation == source) {
    return refuse("validation", "is the loader of the training, which an evaluation would move to its first row", "",
                  "create another Prefetcher over the same dataset");
  }
  if (!has_epochs && (options.eval_every.epochs() > 0 || options.save_every.epochs() > 0)) {
    return refuse(options.eval_every.epochs() > 0 ? "eval_every" : "save_every",
                  "counts epochs, which the source of batches does not have", "", "give it in steps");
  }
  if (!fit.validation && options.eval_every) {
    return refuse("eval_every", "evaluates nothing without a validation loader", to_string(options.eval_every),
                  "pass FitOptions::validation, or set eval_every to 0");
  }
  if (fit.keep_best && (!fit.validation || options.output_dir.empty())) {
    return refuse("keep_best", "needs a validation loader and an output_dir", "", "");
  }
  std::set<std::string, std::less<>> sets;
  for (const ValidationSet& set : fit.validation_sets) {
    if (!fit.validation || !set.loader || set.loader == source || set.name.empty() || !sets.insert(set.name).second) {
      return refuse("validation_sets", "needs FitOptions::validation, and a name and a loader of its own for each set",
                    set.name, "");
    }
  }
  std::set<std::string, std::less<>> names;
  for (const NamedState& state : fit.state) {
    if (state.name.empty() || state.name.find('.') != std::string::npos || !names.insert(state.name).second) {
      return refuse("state", "has a name that is empty, contains a dot or is there twice", state.name, "");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string to_string(const Interval& interval) {
  if (interval.epochs() != 0) return fmt::format("{} epochs", interval.epochs());
  if (interval.time().count() != 0) return fmt::format("{} ms", interval.time().count());
  return fmt::format("{} steps", interval.steps());
}

const char* to_string(ExitReason reason) {
  switch (reason) {
    case ExitReason::kMaxEpochs:
      return "max_epochs";
    case ExitReason::kMaxSteps:
      return "max_steps";
    case ExitReason::kMaxTime:
      return "max_time";
    case ExitReason::kEarlyStopping:
      return "early_stopping";
    case ExitReason::kSignal:
      return "signal";
    case ExitReason::kEndOfData:
      return "end_of_data";
    case ExitReason::kEnded:
      return "ended";
    case ExitReason::kStopped:
      return "stopped";
  }
  return "unknown";
}

absl::StatusOr<Trainer> Trainer::create(DeviceReplicator& devices, std::unique_ptr<Optimizer>&& optimizer,
                                        const TrainerOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check_options(options, devices));
  try {
    return Trainer(std::make_unique<Impl>(detail::strategy_of(devices), std::move(optimizer), options));
  } catch (...) {
    return status_from_current_exception();
  }
}

absl::StatusOr<Trainer> Trainer::create(DeviceReplicator& devices, std::vector<Player> players, SharedFunction shared,
                                        const TrainerOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check_options(options, devices));
  TRAINKIT_RETURN_IF_ERROR(check_players(players, options));
  try {
    return Trainer(
        std::make_unique<Impl>(detail::strategy_of(devices), std::move(players), std::move(shared), options));
  } catch (...) {
    return status_from_current_exception();
  }
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Optimizer& Trainer::optimizer() { return impl_->trained_.optimizer; }
DeviceReplicator& Trainer::devices() { return impl_->devices_; }
const TrainerOptions& Trainer::options() const { return impl_->options_; }

absl::StatusOr<TrainerResult> Trainer::fit_loss(BatchSource& source, LossFunction loss, const FitOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(Session session, begin_loss(&source, std::move(loss), options));
  for (;;) {
    TRAINKIT_ASSIGN_OR_RETURN(const bool goes_on, session.step());
    if (!goes_on) return session.finish();
  }
}

absl::StatusOr<Session> Trainer::begin_loss(BatchSource* source, LossFunction loss, const FitOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(check_fit(options, impl_->options_, source));
  TRAINKIT_RETURN_IF_ERROR(check_losses(impl_->trained_, loss, options));
  auto session = std::make_unique<Session::Impl>(*impl_);
  TRAINKIT_RETURN_IF_ERROR(session->begin(source, std::move(loss), options));
  return Session(std::move(session));
}

int64_t planned_steps(int64_t batches_per_epoch, const TrainerOptions& options) {
  const int64_t per_epoch =
      batches_per_epoch / options.grad_accum_steps + (batches_per_epoch % options.grad_accum_steps != 0);
  int64_t by_epochs = 0;
  if (__builtin_mul_overflow(per_epoch, options.max_epochs, &by_epochs))
    by_epochs = std::numeric_limits<int64_t>::max();
  if (options.max_steps > 0 && (by_epochs == 0 || options.max_steps < by_epochs)) return options.max_steps;
  return by_epochs;
}

}  // namespace trainkit
