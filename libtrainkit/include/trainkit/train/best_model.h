#pragma once
/// The weights of the best evaluation so far, in a file beside the checkpoints.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace torch::nn {
class Module;
}

namespace trainkit {

struct BestModelOptions {
  /// What evaluations are judged by: the name of the value in the file.
  std::string metric = "loss";
  bool higher_is_better = false;
  /// Whether this rank keeps the files: the first one. Another keeps and restores nothing.
  bool writes = true;
};

/// Keeps `<output_dir>/best.safetensors`, which is worth something after the run too: each step's checkpoint may be
/// gone by then. Beside it, `best.before.safetensors` is the best one that the last checkpoint knows, if that is
/// another: a run that is killed after a better evaluation and goes on from the checkpoint has the same best weights in
/// the end as one that was not.
///
///   auto best = BestModel::open(run.output_dir, run.resume, {.metric = "accuracy", .higher_is_better = true}).value();
///   ... fit(..., {.on_evaluation = [&](int64_t step, Metrics& metrics) {
///     kept.Update(best.offer(step, metrics.at("accuracy"), *devices->module()));
///   }});
///   best.restore(*devices->module()).value();   // then test
///   devices->synchronize();                     // on all ranks
///
/// One thread.
class BestModel {
 public:
  /// `resume` is the run's --resume; empty starts afresh, and removes the files of another run. A run that goes on from
  /// a checkpoint takes over what the file beside that says (a copy, if it is of another run); if that is of a later
  /// step, to which this run may never come, what the file before it says. If neither is of a step that the checkpoint
  /// knows, nothing is known until the next evaluation: only of a run that goes on from a checkpoint that is not its
  /// last. Errors: those of resolve_checkpoint (exit code 5), of a file that cannot be read (5), moved or removed (6).
  static absl::StatusOr<BestModel> open(const std::string& output_dir, const std::string& resume,
                                        const BestModelOptions& options);

  /// Keeps the weights of `step` if `value` is better than all before: of equals the first, of NaN none. A step that is
  /// not after the best one's says that the run went back to its last checkpoint (OnNonfinite::kRollback): what that
  /// does not know is forgotten. Waits for the device. Errors: exit code 6.
  absl::Status offer(int64_t step, double value, const torch::nn::Module& model);

  /// Puts the best weights into `model`; false if there were none. Errors: exit code 5.
  absl::StatusOr<bool> restore(torch::nn::Module& model) const;

  /// The step of the best evaluation, and its value; -1 and the worst of all if there was none.
  int64_t step() const { return step_; }
  double value() const { return value_; }
  bool writes() const { return options_.writes; }
  const std::string& path() const { return path_; }

 private:
  BestModel(const std::string& output_dir, const BestModelOptions& options);
  /// Takes over step and value of a file, if it is there and not of a later step.
  absl::StatusOr<bool> take_over(const std::string& path, int64_t resumed_step);
  /// Forgets what the last checkpoint does not know.
  absl::Status go_back();

  BestModelOptions options_;
  std::string output_dir_, path_, before_;
  int64_t step_ = -1;
  double value_;
};

}  // namespace trainkit
