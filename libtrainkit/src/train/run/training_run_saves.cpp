// Checkpoints of a run.

#include <utility>

#include "core/tensors/recorded.h"
#include "train/divided/sharded_copies.h"
#include "train/divided/sharded_state.h"
#include "train/run/training_run.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {

TrainingRun::Clock::time_point TrainingRun::begin_pause() {
  monitor_->pause();
  return Clock::now();
}

double TrainingRun::end_pause(Clock::time_point start) {
  monitor_->resume();
  const Clock::duration pause = Clock::now() - start;
  interval_start_ += pause;
  const double seconds = std::chrono::duration<double>(pause).count();
  pause_seconds_ += seconds;
  return seconds;
}

absl::Status TrainingRun::save() {
  take_step([&] { step_.confirm(); });
  const detail::ProfileStage stage("copy the state to save");
  TRAINKIT_RETURN_IF_ERROR(finish_save());  // one at a time
  TRAINKIT_RETURN_IF_ERROR(records_.emit(/*wait=*/true));
  const Clock::time_point start = begin_pause();
  TRAINKIT_ASSIGN_OR_RETURN(CheckpointContents contents, collect_run(parts(), progress_, shape(), options_.config));
  // Flush the records first, so that a run resumed from this checkpoint does not repeat them.
  const absl::Status logged = fit_.logger ? fit_.logger->flush() : absl::OkStatus();
  const detail::ParameterShards* shards = devices_.shards();
  if (const auto copies = detail::sharded_copies(devices_, step_); copies.size() > 1) {  // of one process
    detail::add_state_of_copies(copies, contents);
    saves_.begin(progress_.step, contents, logged,
                 [copies](CheckpointContents& own) { return detail::join_state_of_copies(copies, own); });
  } else if (shards && group_) {
    begin_save_together(std::move(contents), logged, *shards);
  } else {
    saves_.begin(progress_.step, contents, logged);
  }
  save_seconds_ += end_pause(start);
  return absl::OkStatus();
}

void TrainingRun::begin_save_together(CheckpointContents contents, const absl::Status& logged,
                                      const detail::ParameterShards& shards) {
  const detail::DividedCheckpoint divided =
      detail::keep_own_parts(contents, step_.averages(), *devices_.module(), optimizer_, shards);
  const auto write = [this, &shards, divided](CheckpointStore* store, int64_t step, CheckpointContents own,
                                              const absl::Status& ready) {
    const detail::SavingRank rank{.rank = shards.layout().rank(),
                                  .ranks = shards.layout().ranks(),
                                  .store = store,
                                  .exchange = [&](const at::Tensor& message) { return shards.exchange(message); },
                                  .gather = [&](CheckpointContents& parts,
                                                bool all) { return detail::gather_parts(parts, divided, all, shards); },
                                  .on_alone = [this] { wrote_alone_ = true; }};
    return detail::save_together(rank, step, std::move(own), divided, ready);
  };
  saves_.begin_together(progress_.step, contents, logged, write);
}

void TrainingRun::wait_for_copy() {
  if (!saves_.is_copying()) return;
  const Clock::time_point start = begin_pause();
  saves_.wait_for_copy();
  save_seconds_ += end_pause(start);
}

absl::Status TrainingRun::finish_save() {
  if (!saves_.under_way()) return absl::OkStatus();
  const Clock::time_point start = begin_pause();
  const absl::Status saved = saves_.finish();
  save_seconds_ += end_pause(start);
  if (saved.ok()) {
    last_saved_ = saves_.step();
    warn_of_old_checkpoints();
    warn_of_separate_disks();
  } else if (options_.continue_on_save_error) {
    if (fit_.logger) fit_.logger->print("warning: " + error_line(saved) + "; continuing with the last good checkpoint");
    return absl::OkStatus();
  }
  return saved;
}

void TrainingRun::warn_of_old_checkpoints() {
  const absl::Status kept = saves_.retention_status();
  if (kept.ok() || std::exchange(warned_of_old_checkpoints_, true) || !fit_.logger) return;
  fit_.logger->print("warning: an older checkpoint cannot be deleted and keeps its disk space: " + error_line(kept));
}

void TrainingRun::warn_of_separate_disks() {
  if (!wrote_alone_ || std::exchange(warned_of_separate_disks_, true) || !fit_.logger) return;
  fit_.logger->print("note: not every rank can open " + options_.output_dir +
                     "/checkpoints of the first rank, which therefore gathers the state of all ranks and writes alone");
}

RunShape TrainingRun::shape() const {
  const int64_t micro_batch = loader_.options().batch_size * ranks();
  return {.global_batch_size = micro_batch * options_.grad_accum_steps, .replicas = devices_.world_replicas()};
}

}  // namespace trainkit
