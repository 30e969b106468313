#pragma once
// Adjusts settings of a run that would have no effect, or end it late. Internal to App.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>

#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"

namespace trainkit::detail {

/// Opens the data of a run with App::open and fills in the parts of the task that the application left out. Compares
/// the data with those of the run to continue. Adapts a default batch to a given global batch, and a default
/// --drop_last to data of less than one batch, with a warning in the description.
absl::StatusOr<TrainingTask> open_task(App& app, RunContext& context);

/// Turns off what needs evaluations in a run that has none. Returns warnings of the flags that the user gave.
RunFacts drop_unused_evaluation(const ConfigParser& parser, bool has_validation, TrainerOptions& options);

/// Returns an error (exit code 4) if a device gets a single row of the last batch and the model cannot train on one
/// (BatchNorm with one value per channel). Otherwise the run would end there, at the end of its first epoch.
absl::Status check_last_batch(const Prefetcher& loader, const Placement& placement, const RunOptions& run,
                              const StepRecipe& recipe);

}  // namespace trainkit::detail
