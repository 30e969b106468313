#pragma once
/// The sinks of a run as the flags of every trainer ask for them, in one call.

#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "trainkit/logging/logger.h"
#include "trainkit/logging/wandb.h"

namespace trainkit {

struct RunLogOptions {
  /// Holds metrics.jsonl; made if it is not there.
  std::string output_dir = {};
  /// Where progress is shown; nullptr shows none.
  std::FILE* console = nullptr;
  bool use_tensorboard = true;
  /// Empty: `<output_dir>/tensorboard`.
  std::string tensorboard_dir = {};
  bool use_wandb = false;
  /// `dir` and `resume` are filled in.
  WandbOptions wandb = {};
  /// The step of the checkpoint that the run goes on from: what was logged after it is cut off. -1: a new run, whose
  /// files start empty.
  int64_t resume_step = -1;
  RunLoggerOptions queue = {};
};

/// Opens console, metrics.jsonl, TensorBoard and W&B as asked for.
///
///   auto log = open_run_log({.output_dir = dir, .console = stdout}).value();
///
/// Exit code 6: a file cannot be written; 2: W&B cannot start (see WandbLogger::create).
absl::StatusOr<std::unique_ptr<RunLogger>> open_run_log(const RunLogOptions& options);

}  // namespace trainkit
