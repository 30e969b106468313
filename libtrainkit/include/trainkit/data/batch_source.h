#pragma once
/// Where a training loop takes its batches from.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"

namespace trainkit {

/// Files that a source adds to a checkpoint; see BatchSource::files.
struct SourceFiles {
  /// Bytes that write() will write. The run prints them and checks that the disk has room for them.
  int64_t bytes = 0;
  /// Writes new files into an empty folder; syncs and closes them. Called once, in the thread of the background save,
  /// while next() may be called. An error makes the save fail.
  std::function<absl::Status(const Directory& folder)> write;
};

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

  /// Data that a checkpoint needs and that is too large for state_dict(): the files of this rank, of this moment. Called
  /// by the thread that takes batches, after state_dict(). nullopt: none. The source must outlive the run.
  virtual std::optional<SourceFiles> files() { return std::nullopt; }
  /// Reads the files of a checkpoint, at a resume after load_state_dict(). Not called if the checkpoint has none.
  virtual absl::Status load_files(const Directory& /*folder*/) { return absl::OkStatus(); }

  /// Figures of the source that the run logs with its records, for example the return of episodes. Called between calls
  /// of next(), on the first rank.
  virtual std::map<std::string, double> metrics() const { return {}; }
};

}  // namespace trainkit
