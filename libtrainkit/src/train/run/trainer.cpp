#include "trainkit/train/trainer.h"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "core/base/option_problems.h"
#include "train/run/run_state.h"
#include "train/run/training_run.h"
#include "train/update/step_parameters.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit {
namespace {

absl::Status check_options(const TrainerOptions& options, const DeviceReplicator& devices) {
  detail::OptionProblems problems;
  const auto at_least = [&](const char* name, int64_t value, int64_t least) {
    problems.require(value >= least, name, fmt::format(">= {}", least), value);
  };
  at_least("max_epochs", options.max_epochs, 0);
  at_least("max_steps", options.max_steps, 0);
  at_least("max_time", options.max_time.count(), 0);
  at_least("grad_accum_steps", options.grad_accum_steps, 1);
  at_least("log_every", options.log_every, 0);
  at_least("eval_every", options.eval_every, 0);
  at_least("save_every", options.save_every, 0);
  at_least("keep_last", options.keep_last, 0);
  at_least("keep_every", options.keep_every, 0);
  at_least("early_stopping", options.early_stopping, 0);
  at_least("max_nonfinite", options.max_nonfinite, 1);
  problems.require(options.keep_every == 0 || options.save_every > 0, "keep_every needs save_every")
      .require(options.on_nonfinite != OnNonfinite::kRollback || options.save_every > 0, "rollback needs save_every")
      .require(options.early_stopping == 0 || options.eval_every != 0, "early_stopping needs eval_every")
      .require(!options.plateau || options.eval_every != 0, "plateau needs eval_every")
      .require(options.max_epochs > 0 || options.max_steps > 0, "max_epochs or max_steps must be given")
      .require(detail::finite_not_negative(options.grad_clip), "grad_clip must be >= 0 and finite")
      .require(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay must be in [0, 1)")
      .require(options.save_every == 0 || !options.output_dir.empty(), "save_every needs an output_dir")
      .require(options.resume != "latest" || !options.output_dir.empty(), "resume 'latest' needs an output_dir")
      .require(options.cuda_graph != CudaGraph::kOn || devices.device().is_cuda(), "cuda_graph on needs a CUDA device")
      .require(options.precision != Precision::kFp16 || !devices.device().is_cpu(),
               "precision fp16 needs a GPU; use bf16 on the CPU");
  if (problems.empty()) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kUsage, .id = "train.options", .problem = problems.text()});
}

}  // namespace

class Trainer::Impl {
 public:
  Impl(detail::ReplicaStrategy& devices, std::unique_ptr<Optimizer> optimizer, const TrainerOptions& options)
      : devices_(devices), optimizer_(std::move(optimizer)), options_(options) {
    detail::add_parameters(devices_, *optimizer_);
  }

  detail::ReplicaStrategy& devices_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainerOptions options_;
  EarlierFits fits_;
};

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

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

Optimizer& Trainer::optimizer() { return *impl_->optimizer_; }
DeviceReplicator& Trainer::devices() { return impl_->devices_; }
const TrainerOptions& Trainer::options() const { return impl_->options_; }

namespace {

/// Prints the memory of this process's GPUs, and advice. Other ranks cannot be asked any more: each prints LibTorch's
/// message, which has the memory of its GPU.
void explain_out_of_memory(const TrainerOptions& options, const DeviceReplicator& devices, Logger* logger) {
  if (!logger) return;
  const auto memory = describe_gpu_memory(devices, nullptr);
  if (memory.ok() && !memory->empty()) logger->print(*memory);
  if (options.explain_out_of_memory) logger->print(options.explain_out_of_memory());
}

/// Returns which call of fit wrote the checkpoint to resume from. One that cannot be read is left to the run, which
/// reports it.
int64_t fit_of_checkpoint(const TrainerOptions& options, const EarlierFits& fits) {
  const auto found = resolve_checkpoint(options.resume, options.output_dir);
  const auto state = found.ok() ? load_checkpoint_state(*found) : found.status();
  return state.ok() ? saved_fit(*state) : fits.count;
}

/// Ends a call of fit that had ended before the checkpoint of a later one was written, which the next call resumes.
TrainerResult skip_fit(int64_t saved, EarlierFits& fits, Logger* logger) {
  ++fits.count;
  if (logger) {
    logger->print(fmt::format("fit {} had ended before the checkpoint, which is of fit {}: nothing to do", fits.count,
                              saved + 1));
  }
  return {};
}

}  // namespace

absl::StatusOr<TrainerResult> Trainer::fit_loss(Prefetcher& loader, LossFunction loss, const FitOptions& options) {
  if (options.validation == &loader) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.options",
                      .field = "validation",
                      .problem = "is the loader of the training, which an evaluation would move to its first row",
                      .hint = "create another Prefetcher over the same dataset"});
  }
  if (!options.validation && impl_->options_.eval_every > 0) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.options",
                      .field = "eval_every",
                      .problem = "evaluates nothing without a validation loader",
                      .got = std::to_string(impl_->options_.eval_every),
                      .hint = "pass FitOptions::validation, or set eval_every to 0"});
  }
  Logger* logger = options.logger;
  TrainerOptions own = impl_->options_;
  if (!own.resume.empty()) {
    const int64_t saved = fit_of_checkpoint(own, impl_->fits_);
    if (saved > impl_->fits_.count) return skip_fit(saved, impl_->fits_, logger);
    if (saved < impl_->fits_.count) own.resume.clear();
  }
  FitOptions fit = options;
  if (options.open_logger) {
    fit.open_logger = [&]() -> absl::StatusOr<Logger*> {
      TRAINKIT_ASSIGN_OR_RETURN(logger, options.open_logger());
      return logger;
    };
  }
  const auto run = [&]() -> absl::StatusOr<TrainerResult> {
    try {
      return TrainingRun(impl_->devices_, *impl_->optimizer_, own, loader, std::move(loss), fit, impl_->fits_)();
    } catch (...) {
      return status_from_current_exception();
    }
  };
  absl::StatusOr<TrainerResult> result = run();
  const auto error = error_of(result.status());
  const bool lacks_memory = absl::IsResourceExhausted(result.status()) && (!error || error->id == "memory.exhausted");
  if (lacks_memory) explain_out_of_memory(impl_->options_, impl_->devices_, logger);
  return result;
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
