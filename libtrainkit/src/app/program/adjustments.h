#pragma once
// Adjusts settings of a run that would have no effect, or end it late. Internal to App.

#include <absl/status/status.h>

#include <cstdint>

#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"

namespace trainkit::detail {

/// Fills in the parts of a task that the application left out.
void fill_in_defaults(TrainingTask& task, const RunContext& context);

/// Adapts a default batch to a given global batch, and a default --drop_last to data of less than one batch. Returns
/// warnings.
RunFacts fit_batch_to_rows(const ConfigParser& parser, RunOptions& run, const BatchPlan& plan, int64_t rows);

/// Turns off what needs evaluations in a run that has none. Returns warnings of the flags that the user gave.
RunFacts drop_unused_evaluation(const ConfigParser& parser, bool has_validation, TrainerOptions& options);

/// Returns an error (exit code 4) if a device gets a single row of the last batch and the model cannot train on one
/// (BatchNorm with one value per channel). Otherwise the run would end there, at the end of its first epoch.
absl::Status check_last_batch(const Prefetcher& loader, const Placement& placement, const RunOptions& run,
                              const StepRecipe& recipe);

}  // namespace trainkit::detail
