#include "train/run/training_saves.h"

#include <utility>

#include "core/tensors/recorded.h"
#include "train/divided/divided_writers.h"
#include "train/run/run_messages.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::Status TrainingSaves::open() {
  const TrainerOptions& options = run_.options;
  const bool uses_folder = !options.output_dir.empty() && (options.save_every || !options.resume.empty());
  if (run_.is_first() && uses_folder) {
    TRAINKIT_ASSIGN_OR_RETURN(store_, CheckpointStore::open(options.output_dir, checkpoint_options(options)));
  }
  writer_ = detail::make_writer(run_.devices, run_.optimizer, run_.step, store_ ? &*store_ : nullptr,
                                [this] { wrote_alone_ = true; });
  return absl::OkStatus();
}

bool TrainingSaves::take_time() {
  const auto every = run_.options.save_every.time();
  const TrainingLog::Clock::time_point now = TrainingLog::Clock::now();
  if (!is_on() || every.count() == 0 || !run_.is_first() || now - last_begin_ < every) return false;
  last_begin_ = now;
  return true;
}

absl::Status TrainingSaves::save() {
  const detail::ProfileStage stage("copy the state to save");
  TRAINKIT_RETURN_IF_ERROR(finish());  // one at a time
  TRAINKIT_RETURN_IF_ERROR(log_.emit(/*wait=*/true));
  const TrainingLog::Clock::time_point start = log_.pause();
  last_begin_ = start;
  int64_t file_bytes = 0;
  TRAINKIT_ASSIGN_OR_RETURN(CheckpointContents contents,
                            collect_run(run_.parts(), run_.progress, run_.shape(), run_.options.config, &file_bytes));
  announce_files(file_bytes);
  writer_->expect_files(file_bytes);
  // Flush the records first, so that a run resumed from this checkpoint does not repeat them.
  const absl::Status logged = log_.logger() ? log_.logger()->flush() : absl::OkStatus();
  seconds_before_ = saves_.background_seconds();
  saves_.begin(run_.progress.step, std::move(contents), logged, *writer_);
  log_.resume(start, /*for_save=*/true);
  return absl::OkStatus();
}

/// Prints the size of the source's files before the first save that has some.
void TrainingSaves::announce_files(int64_t bytes) {
  if (bytes == 0 || has_announced_files_) return;
  has_announced_files_ = true;
  log_.print(size_of_files(bytes, run_.options.output_dir));
}

void TrainingSaves::wait_for_copy() {
  if (!saves_.is_copying()) return;
  const TrainingLog::Clock::time_point start = log_.pause();
  saves_.wait_for_copy();
  log_.resume(start, /*for_save=*/true);
}

absl::Status TrainingSaves::finish() {
  if (!saves_.under_way()) return absl::OkStatus();
  const TrainingLog::Clock::time_point start = log_.pause();
  absl::Status saved = saves_.finish();
  log_.resume(start, /*for_save=*/true);
  if (saved.ok()) {
    last_step_ = saves_.step();
    if (has_announced_files_ && !std::exchange(has_timed_files_, true)) {
      log_.print(time_of_save(saves_.step(), saves_.background_seconds() - seconds_before_));
    }
    warn_once();
    return absl::OkStatus();
  }
  if (!run_.options.continue_on_save_error) return saved;
  log_.print("warning: " + error_line(saved) + "; continuing with the last good checkpoint");
  return absl::OkStatus();
}

absl::Status TrainingSaves::check() {
  saves_.release_unused_buffer();
  return !run_.group && saves_.has_ended() ? finish() : absl::OkStatus();
}

void TrainingSaves::warn_once() {
  const absl::Status kept = store_ ? store_->retention_status() : absl::OkStatus();
  if (!kept.ok() && !std::exchange(warned_of_old_checkpoints_, true)) log_.print(undeleted_checkpoint(kept));
  if (wrote_alone_ && !std::exchange(warned_of_separate_disks_, true)) {
    log_.print(separate_disks(run_.options.output_dir));
  }
}

}  // namespace trainkit
