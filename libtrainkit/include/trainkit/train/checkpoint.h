#pragma once
/// Saves and loads crash-safe checkpoints, the weights of the best evaluation, and optimizer files of PyTorch.
/// docs/formats/checkpoint.md specifies the format of checkpoints.

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
#include "trainkit/optim/optimizer.h"

namespace torch::nn {
class Module;
}

namespace trainkit {

namespace detail {
class CheckpointDraft;
}

// ---- Saves and loads crash-safe checkpoints. docs/formats/checkpoint.md specifies the format.

/// State that a run needs to resume.
struct CheckpointContents {
  /// Parameters and buffers by name.
  NamedTensors model;
  /// The optimizer's tensors by parameter name.
  NamedTensors optimizer;
  /// Everything else: scaler, schedule, generators, sampler position, counters, configuration. Values are restored
  /// exactly, including int64, infinities, NaN and -0.0. Tensors are restored contiguous and on the CPU.
  StateDict state;
  /// Further files, for example of a source (BatchSource::files), stored as `source-<name>`. save() writes them; load()
  /// verifies them and leaves this empty.
  std::vector<PendingFile> files = {};
};

/// Copies the tensors to the CPU. The copy shares no memory with the live objects, so another thread can save it while
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
  friend class detail::CheckpointDraft;  // writes a checkpoint together with other ranks
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
  /// Folder of the run, which contains `folder`.
  std::string run_folder() const;
};

/// Finds the checkpoint for `--resume <spec>`: `latest` (of `output_dir`), a run folder, its `checkpoints/` or the file
/// `latest` in it, or one `step-…`, given by path or, inside `output_dir`, by name. Takes no lock. Errors (exit code
/// 5) name the path that was searched: kNotFound, or another code for a folder that cannot be read.
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

// ---- Keeps the weights of the best evaluation in a file of the run folder.

struct BestModelOptions {
  /// Metric that decides, also its key in the file's metadata. "step" is not allowed.
  std::string metric = "loss";
  bool higher_is_better = false;
  /// True on the rank that writes the files, the first one. Other ranks save and restore nothing.
  bool writes = true;
};

/// Saves the weights of the best evaluation to `<output_dir>/best.safetensors`. The file remains useful after the run,
/// when the checkpoint of that step may have been deleted.
///
/// `best.before.safetensors` is the best file as of the last checkpoint, if a better one came after that checkpoint. A
/// run that is killed after a better evaluation and resumed from the checkpoint therefore ends with the same best
/// weights as an uninterrupted run.
///
///   auto best = BestModel::open(run.output_dir, run.resume, {.metric = "accuracy", .higher_is_better = true}).value();
///   ... fit(..., {.on_evaluation = [&](int64_t step, Metrics& metrics) {
///     kept.Update(best.offer(step, metrics.at("accuracy"), *devices->module()));
///   }});
///   best.restore(*devices->module()).value();   // then test
///   devices->synchronize();                     // on all ranks
///
/// Not thread-safe.
class BestModel {
 public:
  /// Opens the files of a run. `resume` is the value of --resume. An empty one starts afresh and removes the files of
  /// an earlier run.
  ///
  /// A resumed run reads `best.safetensors` next to the checkpoint, or a copy of it if the checkpoint is another run's.
  /// If that file is of a step after the checkpoint, `best.before.safetensors` is read instead. If neither file is of a
  /// step up to the checkpoint (it is not the last one of its run), both are removed, and the best evaluation is the
  /// one that the checkpoint records: its weights are taken from the checkpoint of its step, or are lost() if there is
  /// none.
  ///
  /// Errors: a metric called "step" (exit code 2); those of resolve_checkpoint (5), of a file that cannot be read (5),
  /// moved or removed (6).
  static absl::StatusOr<BestModel> open(const std::string& output_dir, const std::string& resume,
                                        const BestModelOptions& options);

  /// Saves the weights of `step` if `value` is better than all earlier ones: the first of equal values wins, NaN never
  /// does. A step at or before the best one means that the run was rolled back to its last checkpoint
  /// (OnNonfinite::kRollback); evaluations after that checkpoint are forgotten. Waits for the device. After an error
  /// (exit code 6) the earlier best weights stay.
  absl::Status offer(int64_t step, double value, const torch::nn::Module& model);

  /// Loads the best weights into `model`; false if there are none. Errors: exit code 5.
  absl::StatusOr<bool> restore(torch::nn::Module& model) const;

  /// Step and value of the best evaluation; -1 and the worst possible value if there was none, or -1 and the recorded
  /// value if lost().
  int64_t step() const { return step_; }
  double value() const { return value_; }
  /// Whether the best evaluation that the checkpoint records has no weights any more: the file stays away until a
  /// better one.
  bool lost() const;
  bool writes() const { return options_.writes; }
  const std::string& path() const { return path_; }

 private:
  BestModel(const std::string& output_dir, const BestModelOptions& options);
  /// Reads step and value from a file; false if it does not exist or is of a later step.
  absl::StatusOr<bool> load_if_known(const std::string& path, int64_t resumed_step);
  /// Continues from the best evaluation that a checkpoint records, after those of later steps are forgotten.
  absl::Status take_recorded(const CheckpointPath& checkpoint);
  SafetensorsMetadata metadata_of(int64_t step, double value) const;
  /// Forgets evaluations after the last checkpoint. See Note [Best weights and rollback] in best_model.cpp.
  absl::Status forget_after_checkpoint();

  BestModelOptions options_;
  std::string output_dir_, path_, before_;
  int64_t step_ = -1;
  double value_;
};

// ---- Exchanges the state of Adam, AdamW, SparseAdam, RMSprop and Adagrad with Python, in files of torch.save.

/// Writes the state_dict() of torch.optim, keyed by parameter names instead of numbers, as torch.distributed.checkpoint
/// does. To load it in Python, with parameters and groups in any order:
///
///   from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
///   set_optimizer_state_dict(model, optimizer, torch.load(path, weights_only=True))
///
/// optimizer.load_state_dict() accepts it too if that optimizer has the same groups with the parameters in this order.
/// Reads from the device. Errors: kUnimplemented for SGD and Muon; exit code 6 for the disk.
absl::Status save_torch_optimizer(const Fs& fs, const std::string& path, const Optimizer& optimizer);

/// Loads exp_avg, exp_avg_sq and step of every parameter. Learning rate, betas and other settings of the optimizer do
/// not change.
///
/// The file contains the state_dict() of Python's optimizer of this kind, alone, in a checkpoint, or in Lightning's
/// list "optimizer_states"; of several optimizers, the one under the key "optimizer", "optimizer_state_dict" or
/// "optim". Parameters are identified by names as above, or by the "param_names" that an optimizer built from
/// model.named_parameters() saves (PyTorch 2.6 and later). Prefixes of wrappers are removed as in load_weights. Numbers
/// without names are an error, since they depend on the order in which the Python program passed the parameters. A
/// parameter in "param_groups" without a state never had a gradient: its state becomes that of a new optimizer.
///
/// The groups must agree with this optimizer in everything that changes the meaning of the state: the algorithm, betas,
/// no amsgrad and no maximize. Adam and AdamW load each other's state unless the weight decay of Adam, which its means
/// contain, is not 0.
///
/// Errors (exit code 5; nothing has changed then): those of TorchFile; weights.optimizer, which names another
/// algorithm, a setting that differs, or a parameter whose state is missing, unexpected or of another shape.
/// kUnimplemented if this optimizer is SGD or Muon, or is sharded.
absl::Status load_torch_optimizer(Optimizer& optimizer, const std::string& path, const Fs& fs = Fs::posix());

}  // namespace trainkit
