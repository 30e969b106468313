#pragma once
// What a run knows of its source of batches. Internal to Trainer.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distributed/replicas/replica_strategy.h"
#include "trainkit/data/batch_source.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {

/// The source of a run's batches: a Prefetcher, another BatchSource, or none, if the caller passes each batch. Keeps
/// the pointers.
class TrainingSource {
 public:
  TrainingSource(BatchSource* source, ProcessGroup* group);

  BatchSource* source() const { return source_; }
  const Prefetcher* loader() const { return loader_; }

  /// Returns the next batch; nullopt at the end of an epoch or of the source. Several ranks agree on the end of a
  /// source without epochs, and on an error of it.
  absl::StatusOr<std::optional<Batch>> next();
  /// Notes a batch that the caller passes.
  void note(const Batch& batch);

  /// Whether a source without epochs has ended.
  bool has_ended() const { return has_ended_; }
  bool has_epochs() const { return source_ && source_->epoch_length(); }
  /// 0 without epochs, as epoch() and epochs().
  int64_t batches_per_epoch() const { return source_ ? source_->epoch_length().value_or(0) : 0; }
  int64_t epoch() const { return has_epochs() ? source_->epoch() : 0; }
  bool at_epoch_end() const { return has_epochs() && source_->position() >= batches_per_epoch(); }
  /// Number of the epoch, from 1, that the last batch has ended; 0 within one.
  int64_t ended_epoch() const {
    if (at_epoch_end()) return source_->epoch() + 1;
    return has_epochs() && source_->position() == 0 ? source_->epoch() : 0;
  }
  /// Epochs, with the fraction of the current one.
  double epochs() const;
  /// Rows of a full batch on this rank: the loader's, else those of the last batch.
  int64_t batch_size() const { return loader_ ? loader_->options().batch_size : last_rows_; }
  /// The same for the shape of a run, in which 0 is unknown.
  int64_t fixed_batch_size() const { return loader_ ? loader_->options().batch_size : 0; }
  uint64_t seed() const { return loader_ ? loader_->sampler().seed() : 0; }

  /// Makes a loader that was created without a device copy its batches to those of `replicas` from now on.
  void use_devices(const DeviceReplicator& replicas);
  /// Returns an error (exit code 4) if an epoch has no batch.
  absl::Status check_has_batch() const;
  /// Appends what must be equal on all ranks.
  void append_fields(std::vector<DigestField>& fields) const;
  /// Batches, rows and waits so far. Any thread.
  PrefetcherStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  absl::StatusOr<std::optional<Batch>> agree(absl::StatusOr<std::optional<Batch>> batch);

  BatchSource* source_;
  Prefetcher* loader_;  // the source, if it is one
  ProcessGroup* group_;
  bool has_ended_ = false;
  int64_t last_rows_ = 0;
  const Clock::time_point start_ = Clock::now();
  std::atomic<int64_t> batches_{0}, rows_{0}, wait_nanoseconds_{0};  // without a loader
};

/// Returns an error (exit code 4) if an epoch of `loader` has no batch.
absl::Status check_has_batch(const Prefetcher& loader);

/// Appends "<name> rows" and "<name> fields" of a data set, which must be equal on all ranks.
void append_data_fields(const std::string& name, const Dataset& dataset, std::vector<DigestField>& fields);

/// As Prefetcher::use_devices for the devices of `replicas`, if `loader` has copied to none so far. nullptr: nothing.
void use_devices(const DeviceReplicator& replicas, Prefetcher* loader);

}  // namespace trainkit
