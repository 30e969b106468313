#include "logging/run_log.h"

#include "core/files/try_folder.h"
#include "logging/append_file.h"
#include "logging/media.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/sinks.h"

namespace trainkit {
namespace {

std::string tensorboard_dir(const RunLogOptions& options) {
  return options.tensorboard_dir.empty() ? options.output_dir + "/tensorboard" : options.tensorboard_dir;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLogger>> open_run_log(const RunLogOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(options.output_dir).status());
  auto run = std::make_unique<RunLogger>(options.queue);
  if (options.console) run->add(std::make_unique<ConsoleProgress>(options.console));
  TRAINKIT_ASSIGN_OR_RETURN(auto jsonl, JsonlLogger::open(options.output_dir + "/metrics.jsonl"));
  run->add(std::move(jsonl));
  // Before W&B, whose client reads its files.
  run->add(std::make_unique<MediaLogger>(options.output_dir + "/" + detail::kMediaFolder));
  if (options.use_tensorboard) {
    TRAINKIT_ASSIGN_OR_RETURN(auto tensorboard,
                              TensorBoardLogger::open(tensorboard_dir(options), options.settings, options.run_id));
    run->add(std::move(tensorboard));
  }
  if (options.use_wandb) {
    WandbOptions wandb = options.wandb;
    wandb.dir = options.output_dir;
    wandb.resume = options.resume_step >= 0;
    TRAINKIT_ASSIGN_OR_RETURN(auto logger, WandbLogger::create(wandb));
    run->add(std::move(logger));
  }
  TRAINKIT_RETURN_IF_ERROR(run->rewind(options.resume_step));
  return run;
}

absl::Status try_run_log(const RunLogOptions& options) {
  const std::string metrics = options.output_dir + "/metrics.jsonl";
  if (Fs::posix().exists(metrics)) TRAINKIT_RETURN_IF_ERROR(detail::AppendFile::open(metrics).status());
  if (options.use_tensorboard) {
    const std::string folder = tensorboard_dir(options);
    if (const int error = detail::try_folder(folder)) return detail::storage_error(folder, "cannot be written", error);
  }
  return options.use_wandb ? WandbLogger::check(options.wandb) : absl::OkStatus();
}

}  // namespace trainkit
