#pragma once
/// Saves and loads crash-safe checkpoints. docs/formats/checkpoint.md specifies the format.

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

/// State that a run needs to resume.
struct CheckpointContents {
  /// Parameters and buffers by name.
  NamedTensors model;
  /// The optimizer's tensors by parameter name.
  NamedTensors optimizer;
  /// Everything else: scaler, schedule, generators, sampler position, counters, configuration. Values are restored
  /// exactly, including int64, infinities, NaN and -0.0. Tensors are restored contiguous and on the CPU.
  StateDict state;
};

/// Copies the contents to the CPU. The copy shares no memory with the live objects, so another thread can save it while
/// training continues. Synchronises with the device.
CheckpointContents snapshot(const CheckpointContents& contents);

struct CheckpointOptions {
  /// Number of newest checkpoints to keep; 0 keeps all. The checkpoint that `latest` names is never deleted.
  int keep_last = 3;
  /// Milestone interval: checkpoints of steps that are a multiple of this are never deleted; 0 disables milestones.
  int64_t keep_every = 0;
  /// File layer; nullptr is the operating system's.
  const Fs* fs = nullptr;
};

/// Stores the checkpoints of one run, `<output_dir>/checkpoints/step-<n, eight digits>/`.
///
///   auto store = CheckpointStore::open("runs/mine", {.keep_last = 3}).value();
///   store.save(step, {.model = ..., .optimizer = ..., .state = ...});   // a Status: exit code 6 if the disk fails
///   auto contents = store.load(store.latest().value()).value();
///
/// save() writes a folder under a temporary name, flushes it and renames it, then replaces the small file `latest`.
/// After a crash at any moment `latest` names either the previous checkpoint or the new one, and that one is valid.
/// Only real directories with checkpoint names are deleted; links are never followed.
///
/// One process at a time writes: open() locks the folder. save() may run in any thread, one call at a time. It reads
/// its contents until it returns, so pass a snapshot() if training continues meanwhile. The other functions may be
/// called concurrently with save().
class CheckpointStore {
 public:
  /// Opens the folder, and creates it if it is missing. Locks it and removes incomplete checkpoints of a killed run.
  /// Errors: exit code 2 if another run writes there; 6 if the folder cannot be created or written, is a link, or is
  /// writable by every user.
  static absl::StatusOr<CheckpointStore> open(const std::string& output_dir, const CheckpointOptions& options = {});

  CheckpointStore(CheckpointStore&&) noexcept;
  CheckpointStore& operator=(CheckpointStore&&) noexcept;
  ~CheckpointStore();

  /// Writes a checkpoint and makes it the latest. OK means that it is on the disk. Saving a step again replaces its
  /// checkpoint. After an error (exit code 6; for a full disk with the bytes needed and free) earlier checkpoints are
  /// unchanged and no incomplete files remain. Blocks until the disk has the data, and synchronises with the tensors'
  /// devices.
  absl::Status save(int64_t step, const CheckpointContents& contents);

  /// Reads a checkpoint and verifies every file of it. An error (exit code 5, kNotFound if there is no such step) names
  /// the file; its hint names the newest older valid checkpoint.
  absl::StatusOr<CheckpointContents> load(int64_t step) const;

  /// Returns the step that `latest` names, or the newest step if that file is missing. kNotFound if there is no
  /// checkpoint. Does not read the checkpoint's files; load() verifies them.
  absl::StatusOr<int64_t> latest() const;

  /// Returns the newest valid step, regardless of `latest`. Reads and verifies the files. For callers that want to fall
  /// back to an older checkpoint.
  absl::StatusOr<int64_t> newest_valid() const;

  /// Lists the steps in ascending order. Skips links and folders with other names.
  absl::StatusOr<std::vector<int64_t>> steps() const;

  /// Returns why the last save(), or open(), could not delete an older checkpoint or the remains of a save; else OK.
  /// Such an entry keeps its disk space, has a temporary name and is tried again by every save. It affects nothing
  /// else.
  absl::Status retention_status() const;

  /// `<output_dir>/checkpoints`.
  const std::string& path() const;

 private:
  struct Impl;
  explicit CheckpointStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Location of one checkpoint on the disk.
struct CheckpointPath {
  /// Folder that contains the `step-…` folders.
  std::string folder;
  int64_t step = 0;
  std::string path() const;
};

/// Finds the checkpoint for `--resume <spec>`: `latest` (of `output_dir`), a run folder, its `checkpoints/` or the file `latest` in
/// it, or one `step-…`, given by path or, inside `output_dir`, by name. Takes no lock. An error (exit code 5, kNotFound) names
/// `spec` and the path that was searched.
absl::StatusOr<CheckpointPath> resolve_checkpoint(const std::string& spec, const std::string& output_dir,
                                                  const Fs& fs = Fs::posix());

/// Reads a checkpoint and verifies every file of it, as CheckpointStore::load does. Takes no lock.
absl::StatusOr<CheckpointContents> load_checkpoint(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

/// Reads and verifies only state.json of a checkpoint. It is small and describes the run before its model is built.
absl::StatusOr<StateDict> load_checkpoint_state(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

/// Verifies a checkpoint's files against its manifest without loading them. Errors are those of load_checkpoint.
absl::Status verify_checkpoint(const CheckpointPath& checkpoint, const Fs& fs = Fs::posix());

/// Copies the state of the default generators: "cpu", and "cuda.0", "cuda.1", ... of the CUDA devices in use, each a
/// uint8 tensor. Takes each generator's lock; synchronises with no device.
StateDict default_generator_state();

/// Restores the generators, on any kind and number of devices. Ignores entries of devices that are not in use; a device
/// without an entry keeps its generator. "cpu" is required. Checks all entries first: an error (exit code 5) names the
/// one that is missing or has another size, and no generator has changed.
absl::Status load_default_generator_state(const StateDict& state);

}  // namespace trainkit
