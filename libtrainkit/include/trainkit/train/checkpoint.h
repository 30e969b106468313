#pragma once
/// Checkpoints that a kill, a full disk or a broken file cannot take from a run. The format is
/// docs/formats/checkpoint.md.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/io/safetensors.h"

namespace trainkit {

/// All that a run needs to go on.
struct CheckpointContents {
  /// Parameters and buffers by name.
  NamedTensors model;
  /// The optimizer's tensors by parameter name.
  NamedTensors optimizer;
  /// Everything else: scaler, schedule, generators, sampler position, counters, configuration. Comes back as it was,
  /// int64, infinities, NaN and -0.0 included; tensors come back contiguous, on the CPU.
  StateDict state;
};

/// A copy whose tensors are on the CPU and share nothing with the live objects, so that another thread can save it
/// while training goes on. Synchronises with the device.
CheckpointContents snapshot(const CheckpointContents& contents);

struct CheckpointOptions {
  /// Checkpoints to keep, the newest first; 0 keeps all. The one that `latest` names is never deleted.
  int keep_last = 3;
  /// Milestones: checkpoints of a step that is a multiple of this stay in any case; 0: none do.
  int64_t keep_every = 0;
  /// The file layer; nullptr is the machine's.
  const Fs* fs = nullptr;
};

/// The checkpoints of one run, `<output_dir>/checkpoints/step-<n, eight digits>/`.
///
///   auto store = CheckpointStore::open("runs/mine", {.keep_last = 3}).value();
///   store.save(step, {.model = ..., .optimizer = ..., .state = ...});   // a Status: exit code 6 if the disk fails
///   auto contents = store.load(store.latest().value()).value();
///
/// save() writes a folder beside its place, flushes it and renames it, then replaces the small file `latest`; after a
/// crash at any moment `latest` names the checkpoint before or the new one, and that one verifies. Only real
/// directories with our names are ever deleted, and links are never followed.
///
/// One process at a time writes: open() locks the folder. save() may run in any thread, one call at a time, and reads
/// its contents until it returns: give it a snapshot() if training goes on meanwhile. The other functions may run
/// beside it.
class CheckpointStore {
 public:
  /// Makes the folder if it is missing, locks it, and removes what a killed run left half written. Exit code 2 if
  /// another run writes there, 6 if the folder cannot be made or written, or is a link or open to every user.
  static absl::StatusOr<CheckpointStore> open(const std::string& output_dir, const CheckpointOptions& options = {});

  CheckpointStore(CheckpointStore&&) noexcept;
  CheckpointStore& operator=(CheckpointStore&&) noexcept;
  ~CheckpointStore();

  /// Writes a checkpoint and makes it the latest. OK means that it is on the disk. On an error (exit code 6; for a full
  /// disk the bytes needed and free) the checkpoints before are as they were and nothing half written is left. Saving a
  /// step again replaces it. Blocks for as long as the disk takes, and synchronises with the tensors' devices.
  absl::Status save(int64_t step, const CheckpointContents& contents);

  /// Reads a checkpoint and verifies every file of it. An error (exit code 5, kNotFound if there is no such step) names
  /// the file, and its hint the newest older step that does verify.
  absl::StatusOr<CheckpointContents> load(int64_t step) const;

  /// The step that `latest` names, or the newest step if there is no such file; kNotFound if there is no checkpoint at
  /// all. Its files are not read: load() verifies them.
  absl::StatusOr<int64_t> latest() const;

  /// The newest step that verifies, whatever `latest` says: for a caller who asks to fall back. Reads the files.
  absl::StatusOr<int64_t> newest_valid() const;

  /// Steps in ascending order. Folders that are links or not ours are left out.
  absl::StatusOr<std::vector<int64_t>> steps() const;

  /// Why the last save() could not delete an older checkpoint, though its own is safe; OK if nothing was in the way.
  absl::Status retention_status() const;

  /// `<output_dir>/checkpoints`.
  const std::string& path() const;

 private:
  struct Impl;
  explicit CheckpointStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// One checkpoint on the disk.
struct CheckpointPath {
  /// The folder that holds `step-…` folders.
  std::string folder;
  int64_t step = 0;
  std::string path() const;
};

/// Finds the checkpoint that `--resume <spec>` means: `latest` (of `output_dir`), a run's folder, its `checkpoints/`,
/// or one `step-…` by path or, below `output_dir`, by name. Locks nothing. An error (exit code 5, kNotFound) says what
/// was looked for and where.
absl::StatusOr<CheckpointPath> resolve_checkpoint(const std::string& spec, const std::string& output_dir,
                                                  const Fs& fs = Fs::posix());

/// Reads a checkpoint and verifies every file of it, as CheckpointStore::load does. Locks nothing.
absl::StatusOr<CheckpointContents> load_checkpoint(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

/// Reads and verifies a checkpoint's state.json alone, which is small: how a run was, before its model is made.
absl::StatusOr<StateDict> load_checkpoint_state(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

/// Checks a checkpoint's files against its manifest without loading them. An error is that of load_checkpoint.
absl::Status verify_checkpoint(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

}  // namespace trainkit
