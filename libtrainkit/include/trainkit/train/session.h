#pragma once
/// A run whose loop belongs to the caller: hosts that draw, simulate or serve between steps.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/train/step_metrics.h"

namespace trainkit {

struct TrainerResult;

/// What happens in a run, on the thread that steps, in this order: begin; in each step gradients, then step, and if due
/// evaluation and save; epoch after the last step of one; end. Derive from it, override what you need and pass it as
/// FitOptions::events. All functions return OK by default.
///
/// An error ends the run: it is returned by step() or fit() and names the event. absl::CancelledError ends the run like
/// Session::request_stop(). An exception is an error. With several ranks an event may fail or stop on any of them; all
/// end after the same step, the next one at the latest (two later with CUDA graphs). Do not call step(), fit() or
/// begin() of the same Trainer in an event: that is an error.
class Events {
 public:
  virtual ~Events();
  /// Before the first step. `step` is the number of steps done so far: 0, or that of the checkpoint.
  virtual absl::Status on_begin(int64_t /*step*/) { return absl::OkStatus(); }
  /// Whether on_gradients() is wanted: steps are then not captured as CUDA graphs, and sharding is refused.
  virtual bool reads_gradients() const { return false; }
  /// In each step of each player, when its gradients are reduced over replicas and ranks, unscaled and not yet clipped:
  /// those of replica 0 may be read. `player` is empty without players. Not called if no row counts in the step. With
  /// one process an error leaves the weights as they are.
  virtual absl::Status on_gradients(int64_t /*step*/, std::string_view /*player*/, DeviceReplicator& /*devices*/) {
    return absl::OkStatus();
  }
  /// After each step. Reading a value of `metrics` waits for the device.
  virtual absl::Status on_step(int64_t /*step*/, const StepMetrics& /*metrics*/) { return absl::OkStatus(); }
  /// After an epoch, of sources that have them. Counts from 1.
  virtual absl::Status on_epoch(int64_t /*epoch*/) { return absl::OkStatus(); }
  /// After an evaluation and FitOptions::on_evaluation. The metrics may be changed.
  virtual absl::Status on_evaluation(int64_t /*step*/, std::map<std::string, double>& /*metrics*/) {
    return absl::OkStatus();
  }
  /// Before the state is copied for a checkpoint.
  virtual absl::Status on_save(int64_t /*step*/) { return absl::OkStatus(); }
  /// After everything was written.
  virtual absl::Status on_end(const TrainerResult& /*result*/) { return absl::OkStatus(); }
};

/// An object of the program whose state is saved and restored with the run, each rank's own: a simulator, running
/// statistics, a queue. It needs the two functions of every component with state (StateDict). Tensors are written into
/// state.json as text: for a few megabytes at most.
struct NamedState {
  /// Keeps a reference to `object`.
  template <class T>
  NamedState(std::string name_, T& object)
      : name(std::move(name_)),
        state_dict([&object] { return object.state_dict(); }),
        load_state_dict([&object](const StateDict& state) { return object.load_state_dict(state); }) {}

  std::string name;
  std::function<StateDict()> state_dict;
  std::function<absl::Status(const StateDict&)> load_state_dict;
};

/// Where a run is. See Session::progress.
struct Progress {
  int64_t step = 0;
  /// Position in the data, of sources with epochs.
  double epochs = 0;
  /// Loss of the last logged step (TrainerOptions::log_every); NaN before the first.
  double loss = 0;
  /// True from the end of the run, or its error, on.
  bool has_ended = false;
};

/// A run in steps: what Trainer::fit() does in its loop, one step at a time. Trainer::begin() makes one.
///
///   auto session = trainer.begin(loss, {.logger = &*log}).value();
///   while (simulate() && session.step(batch).value()) draw(session.progress());
///   auto result = session.finish().value();
///
/// Records, evaluations, checkpoints, limits and votes of ranks are those of fit(). step() and finish() may be called
/// from any thread, but not from two at the same time: the second call is an error and changes nothing. Between two
/// steps other threads must not draw from LibTorch's default generators (torch::rand without a generator), or a resumed
/// run differs: give them generators of their own.
///
/// The Trainer and what its options refer to must outlive the Session. Without finish() nothing is written at the end,
/// as after an error; the last checkpoint stays.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Runs a step with the next batches of the source. Returns false, and does nothing, after the end of the run: a
  /// limit of the options, the end of the source, request_stop() or a signal. Errors are those of Trainer::fit(); later
  /// calls return the same error.
  absl::StatusOr<bool> step();
  /// Runs forward and backward of `batch`, and the update after every grad_accum_steps calls. Each rank passes its own
  /// rows, all ranks make the same calls. The tensors must not change before the call returns, on a CUDA device before
  /// the device has used them.
  absl::StatusOr<bool> step(const Batch& batch);

  /// Ask for a checkpoint, or for the end of the run, after the step in progress or the next one; with several ranks on
  /// any of them. A stopped run can be resumed: it ends as if by a signal, and finish() saves it if save_every > 0. Any
  /// thread may call them.
  void request_save();
  void request_stop();
  /// Set a learning rate from the next step on: the one that schedules multiply, of all groups of a player, or of one
  /// group (ParamGroup::name). `player` is empty without players. Between steps, on every rank alike. Kept in
  /// checkpoints. Errors of exit code 2: unknown names, a rate that is not finite and >= 0.
  absl::Status set_lr(std::string_view player, double lr);
  absl::Status set_lr(std::string_view player, std::string_view group, double lr);
  /// Freezes or thaws the parameters whose names match `pattern`, in which * stands for any characters, from the next
  /// step on. Between steps, on every rank alike. Kept in checkpoints. Modes of modules stay as they are. Error of exit
  /// code 2: no parameter matches, or sharding divides them.
  absl::Status set_trainable(std::string_view pattern, bool trainable);
  /// Returns where the run is, without waiting for a step or a device. Any thread may call it.
  Progress progress() const;

  /// Ends the run as fit() does: last record, last evaluation, last checkpoint. Before a limit it ends the run there,
  /// after the batches of an incomplete accumulation. Later calls return the same result.
  absl::StatusOr<TrainerResult> finish();

 private:
  friend class Trainer;
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
