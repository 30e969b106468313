#pragma once
// The options of a Trainer from the shared flags. Internal to run_app.

#include <absl/status/statusor.h>

#include <cstdint>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/train/trainer.h"

namespace trainkit::detail {

/// Builds trainer options from the shared flags for training on `loader`. `min_lr_factor` is the learning rate at the
/// end of the schedule, as a factor. --monitor shows the live table. Unset eval_every and save_every become one epoch.
/// A default warm-up that is too long for a short run becomes a tenth of the run; run.warmup_steps is updated. Errors
/// are those of the schedule and name the flag.
absl::StatusOr<TrainerOptions> trainer_options(const ConfigParser& parser, RunOptions& run, const Placement& placement,
                                               const Prefetcher& loader, double min_lr_factor = 0);

/// Shortens a default warm-up to a tenth of a run of `total_steps` steps. One that the user has set is kept.
void shorten_warmup(const ConfigParser& parser, RunOptions& run, int64_t total_steps);

}  // namespace trainkit::detail
