#include "app/run/trainer_options.h"

#include <chrono>

#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// Seconds per row of --monitor's table.
constexpr int kTableEvery = 5;

std::chrono::milliseconds milliseconds(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(seconds);
}

}  // namespace

void shorten_warmup(const ConfigParser& parser, RunOptions& run, int64_t total_steps) {
  const std::string source = parser.source("warmup_steps");
  const bool is_of_run = !parser.is_given("warmup_steps") && !parser.is_default("warmup_steps");  // that it continues
  if (source.starts_with("default") || source.starts_with("preset") || (is_of_run && run.warmup_steps >= total_steps)) {
    if (run.warmup_steps > total_steps / 10) {
      run.warmup_steps = total_steps / 10;
      parser.add_remark("warmup_steps", "shortened to a tenth of the run");
    }
  }
}

absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, RunOptions& run, const Placement& placement,
                                               const Prefetcher& loader, double min_lr_factor) {
  TrainerOptions options{.max_epochs = run.epochs,
                         .max_steps = run.max_steps,
                         .max_time = milliseconds(run.max_time),
                         .precision = resolve_precision(run, placement.device()),
                         .grad_accum_steps = placement.batch.grad_accum_steps,
                         .grad_clip = run.grad_clip,
                         .ema_decay = run.ema,
                         .cuda_graph = run.cuda_graph,
                         .on_nonfinite = run.on_nonfinite,
                         .max_nonfinite = run.max_nonfinite,
                         .log_every = run.log_every,
                         .output_dir = run.output_dir,
                         .keep_last = run.keep_last,
                         .keep_every = run.keep_every,
                         .continue_on_save_error = run.on_save_error == OnSaveError::kContinue,
                         .resume = run.resume,
                         .override_lr = parser.is_changed("lr"),
                         .early_stopping = run.early_stopping,
                         .monitoring = {.table_every = run.monitor ? kTableEvery : 0},
                         .profile_step = run.profile,
                         .handle_signals = true};
  const int64_t epoch_steps =
      planned_steps(loader.batches_per_epoch(), {.max_epochs = 1, .grad_accum_steps = options.grad_accum_steps});
  options.eval_every = run.eval_every.value_or(epoch_steps);
  options.save_every = run.save_every.value_or(epoch_steps);
  const int64_t total_steps = planned_steps(loader.batches_per_epoch(), options);
  const bool plateau = run.scheduler == "plateau";
  if (plateau) options.plateau = PlateauOptions{.factor = run.factor, .patience = run.patience};
  shorten_warmup(parser, run, total_steps);
  if (run.warmup_steps > 0 && run.warmup_steps >= total_steps) {
    return parser.invalid("warmup_steps", "leaves no steps for the schedule",
                          "below the " + std::to_string(total_steps) + " steps of the run");
  }
  auto schedule = create_schedule({.name = plateau ? "constant" : run.scheduler,
                                   .total_steps = total_steps,
                                   .warmup_steps = run.warmup_steps,
                                   .min_factor = min_lr_factor});
  if (!schedule.ok()) {
    const auto error = error_of(schedule.status());
    return parser.invalid("scheduler", error ? error->problem : std::string(schedule.status().message()));
  }
  options.schedule = *std::move(schedule);
  return options;
}

}  // namespace trainkit::detail
