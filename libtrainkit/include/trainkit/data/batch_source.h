#pragma once
/// Where a training loop takes its batches from.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"

namespace trainkit {

/// A source of batches: a Prefetcher over a dataset, a QueueSource that another thread fills, or your own.
///
/// One thread takes batches; only stop() may be called from others. Sources with several ranks: each rank has its own.
/// If a source has epochs, all ranks need the same epoch_length(). If it has none, the Trainer lets the ranks agree
/// before each batch that all of them have one, and the run ends after the same step on all ranks.
class BatchSource {
 public:
  virtual ~BatchSource();

  /// Returns the next batch; nullopt at the end of an epoch, or without epochs at the end of the source. May block. The
  /// batch is valid until the next call.
  virtual absl::StatusOr<std::optional<Batch>> next() = 0;
  /// Fields of every batch.
  virtual const std::vector<FieldSpec>& fields() const = 0;

  /// Number of batches per epoch on this rank; nullopt if the source has no epochs.
  virtual std::optional<int64_t> epoch_length() const { return std::nullopt; }
  /// Epochs that have ended, and batches that next() has returned in the current one. Of sources with epochs.
  virtual int64_t epoch() const { return 0; }
  virtual int64_t position() const { return 0; }

  /// Makes a call of next() in progress and all later ones return `reason`, an error. Any thread may call it.
  virtual void stop(absl::Status reason) = 0;

  /// The position in the data, and what else a resumed run needs to get the same batches. Each rank saves its own.
  virtual StateDict state_dict() const { return {}; }
  virtual absl::Status load_state_dict(const StateDict& /*state*/) { return absl::OkStatus(); }

  /// Data that a resumed run needs and that is too large for state_dict(): this rank's files of the checkpoint, with
  /// the contents of this moment. Called by the thread that takes batches, after state_dict(). The background save
  /// writes them while training continues, so the source must outlive the run. Names have letters, digits, '-' and '_'.
  virtual std::vector<PendingFile> files() { return {}; }
  /// Reads these files, by name, at a resume: after load_state_dict(), which was called with the state of the same
  /// checkpoint. They are verified. Empty if this rank has saved none.
  virtual absl::Status load_files(const std::map<std::string, ReadableFile>& /*files*/) { return absl::OkStatus(); }

  /// Figures of the source that the run logs with its records, for example the return of episodes. Called between calls
  /// of next(), on the first rank.
  virtual std::map<std::string, double> metrics() const { return {}; }
};

}  // namespace trainkit
