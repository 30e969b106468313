#include "app/program/run_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "app/program/repeats.h"
#include "logging/run_log.h"
#include "trainkit/app/placement.h"
#include "trainkit/app/run_options.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

absl::Status check_flags(const ProgramMode& mode, const ConfigParser& parser, const RunOptions& run,
                         const MachineInfo& machine) {
  TRAINKIT_ASSIGN_OR_RETURN(const Placement placement, resolve_devices(parser, run, machine));
  // A launcher's command line, and its dry run, is the same for any number of ranks, one included; --use_multi_gpu is
  // the same for any number of GPUs.
  const bool has_ranks = placement.strategy == Strategy::kDistributed || run.plan_devices > 1;
  const bool may_have_several = has_ranks || run.use_multi_gpu;
  Settings resolved;
  resolved.emplace_back("strategy", name_of(has_ranks ? Strategy::kDistributed : placement.strategy));
  resolved.emplace_back("parallel",
                        std::to_string(std::max<int64_t>(placement.batch.replicas, may_have_several ? 2 : 1)));
  // Loss scaling skips steps with every policy.
  if (resolve_precision(run, placement.device()) == Precision::kFp16) resolved.emplace_back("on_nonfinite", "skip");
  return parser.check_used(mode, resolved);
}

absl::Status prepare_folders(const App& app, const ConfigParser& parser, const RunOptions& run) {
  const std::vector<std::string> files = app.info().files;
  TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, run, files));
  if (run.dry_run) {
    TRAINKIT_RETURN_IF_ERROR(try_run_log({.output_dir = run.output_dir,
                                          .use_tensorboard = run.use_tensorboard,
                                          .tensorboard_dir = run.tensorboard_dir,
                                          .use_wandb = run.use_wandb}));
  }
  const Repeats repeats = app.repeats();
  for (int64_t i = 0; repeats.count > 1 && i < repeats.count; ++i) {
    RunOptions repeat = repeat_of(run, repeats, i);
    repeat.dry_run = true;
    TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, repeat, files));
  }
  return absl::OkStatus();
}

}  // namespace trainkit::detail
