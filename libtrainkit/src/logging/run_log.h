#pragma once
/// Opens all log sinks of a run, as selected by the trainers' flags, in one call.

#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "trainkit/logging/logger.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {

struct RunLogOptions {
  /// Folder of metrics.jsonl. Created if it does not exist.
  std::string output_dir = {};
  /// Stream for progress. nullptr disables it.
  std::FILE* console = nullptr;
  bool use_tensorboard = true;
  /// TensorBoard folder. Default if empty: `<output_dir>/tensorboard`.
  std::string tensorboard_dir = {};
  /// Id of the run in the names of TensorBoard's files; see TensorBoardLogger::open.
  std::string run_id = {};
  /// Settings of the run, for TensorBoard's HPARAMS. W&B has its own in `wandb`.
  std::map<std::string, std::string> settings = {};
  bool use_wandb = false;
  /// W&B options. open_run_log sets `dir` and `resume`.
  WandbOptions wandb = {};
  /// Step of the checkpoint from which the run resumes; later records are removed. -1 starts a new run with empty
  /// files.
  int64_t resume_step = -1;
  RunLoggerOptions queue = {};
};

/// Opens the selected sinks among console, metrics.jsonl, media/, TensorBoard and W&B.
///
///   auto log = open_run_log({.output_dir = dir, .console = stdout}).value();
///
/// Exit code 6 if a file is not writable, 2 if W&B does not start (see WandbLogger::create).
absl::StatusOr<std::unique_ptr<RunLogger>> open_run_log(const RunLogOptions& options);

/// Tries what open_run_log does, for a dry run, and returns its error: the folders, an existing metrics.jsonl, W&B.
/// Nothing that it creates stays.
absl::Status try_run_log(const RunLogOptions& options);

}  // namespace trainkit
