#pragma once
/// Continues a run from its folder.

#include <absl/status/statusor.h>

#include <string>

#include "trainkit/app/run_options.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/trainer.h"

namespace trainkit::detail {

/// Lets --resume take the settings of the run that it continues from that run's config.yaml, and its folder as
/// --output_dir. `parser` must have the flags of add_run_flags, bound to `run`; both must outlive parse().
void continue_with_own_settings(ConfigParser& parser, const RunOptions& run);

/// Returns the result of ConfigParser::parse(). If it is an error in config.yaml of a run that another program than
/// `program` has made, returns an error that says so.
absl::StatusOr<Request> explain_settings_error(const absl::StatusOr<Request>& parsed, const std::string& program);

/// Whether a run writes new files to --output_dir: without --resume, or with a checkpoint of another folder.
bool is_new_in_its_folder(const RunOptions& run);

/// Describes the checkpoint of --resume, LibTorch's version if another one wrote it, and each setting that differs from
/// the run's; empty without --resume.
RunFacts describe_resume(const ConfigParser& parser, const RunOptions& run);

/// Returns a line for a --resume that has nothing left to do: the run reached the end given by `options` and has its
/// summary. Otherwise "".
std::string describe_end(const RunOptions& run, const TrainerOptions& options, int64_t batches_per_epoch);

}  // namespace trainkit::detail
