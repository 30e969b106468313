#pragma once
// The first and the last lines of a run. Internal to run_app.

#include <string>

#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/report/summary.h"
#include "trainkit/tasks/task.h"
#include "trainkit/train/trainer.h"

namespace trainkit::detail {

/// Returns the facts for the first lines of a run: strategy and devices, batches, precision, parameters, memory of
/// weights and optimizer, fields of a batch.
RunFacts describe_run(const RunOptions& run, Trainer& trainer, const Placement& placement, const Prefetcher& loader);

/// Returns the common last lines of a trainer: "1200 steps in 2:10, data wait 0.3%"; then the TensorBoard command of
/// the run, if it has TensorBoard files, and the command that resumes it, if a signal stopped it, each after a line
/// end.
std::string describe_time(const TrainerResult& result);
std::string describe_next(const TrainerResult& result, const RunOptions& run, const std::string& program);

/// Describes the metrics of the last evaluation, of a run without a kind of task.
std::string describe_evaluation(const TrainerResult& result);
/// Describes the scores of validation and of a test, with the folder of the results; `scores` is empty without a test.
/// `tested_step` is the step of the tested weights; -1: the last ones.
std::string describe_task_scores(const ModelTest& test, const TrainerResult& result, const Metrics& scores,
                                 int64_t tested_step, const std::string& output_dir);

}  // namespace trainkit::detail
