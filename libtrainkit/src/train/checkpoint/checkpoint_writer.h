#pragma once
// Writes the checkpoints of a run. Internal to Trainer.

#include <absl/status/status.h>

#include <cstdint>

#include "trainkit/train/checkpoint.h"

namespace trainkit {

/// Interface of what BackgroundSaves runs: on each rank one writer, with the same calls.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;

  /// Called by the training thread with the live state, before it is copied: leaves what this rank writes, and adds
  /// what the others need of it. Copies no tensor.
  virtual void prepare(CheckpointContents& contents) { static_cast<void>(contents); }
  /// Tells the bytes of CheckpointContents::files of all ranks together, before prepare(). Every rank calls it.
  virtual void expect_files(int64_t bytes) { static_cast<void>(bytes); }
  /// Returns whether write() has anything to do on this rank if it is `ready`.
  virtual bool has_work(bool ready) const = 0;
  /// Writes the copy of what prepare() has left. Called by one thread at a time, which need not be the training thread.
  /// @param ready an error of this rank that fails the save, on all ranks that write together
  virtual absl::Status write(int64_t step, CheckpointContents contents, const absl::Status& ready) = 0;
};

/// Writes a whole state to a store.
class StoreWriter : public CheckpointWriter {
 public:
  /// @param store null on ranks that do not write
  explicit StoreWriter(CheckpointStore* store) : store_(store) {}

  bool has_work(bool ready) const override { return ready && store_; }
  absl::Status write(int64_t step, CheckpointContents contents, const absl::Status& ready) override {
    return ready.ok() && store_ ? store_->save(step, contents) : ready;
  }

 private:
  CheckpointStore* store_;
};

}  // namespace trainkit
