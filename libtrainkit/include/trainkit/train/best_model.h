#pragma once
/// Keeps the weights of the best evaluation in a file of the run folder.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace torch::nn {
class Module;
}

namespace trainkit {

struct BestModelOptions {
  /// Metric that decides, also its key in the file's metadata.
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
  /// step up to the checkpoint, nothing is known until the next evaluation; this happens only if the checkpoint is not
  /// the last one of its run.
  ///
  /// Errors: those of resolve_checkpoint (exit code 5), of a file that cannot be read (5), moved or removed (6).
  static absl::StatusOr<BestModel> open(const std::string& output_dir, const std::string& resume,
                                        const BestModelOptions& options);

  /// Saves the weights of `step` if `value` is better than all earlier ones: the first of equal values wins, NaN never
  /// does. A step at or before the best one means that the run was rolled back to its last checkpoint
  /// (OnNonfinite::kRollback); evaluations after that checkpoint are forgotten. Waits for the device. Errors: exit code
  /// 6.
  absl::Status offer(int64_t step, double value, const torch::nn::Module& model);

  /// Loads the best weights into `model`; false if there are none. Errors: exit code 5.
  absl::StatusOr<bool> restore(torch::nn::Module& model) const;

  /// Step and value of the best evaluation; -1 and the worst possible value if there was none.
  int64_t step() const { return step_; }
  double value() const { return value_; }
  bool writes() const { return options_.writes; }
  const std::string& path() const { return path_; }

 private:
  BestModel(const std::string& output_dir, const BestModelOptions& options);
  /// Reads step and value from a file; false if it does not exist or is of a later step.
  absl::StatusOr<bool> load_if_known(const std::string& path, int64_t resumed_step);
  /// Forgets evaluations after the last checkpoint. See Note [Best weights and rollback] in best_model.cpp.
  absl::Status forget_after_checkpoint();

  BestModelOptions options_;
  std::string output_dir_, path_, before_;
  int64_t step_ = -1;
  double value_;
};

}  // namespace trainkit
