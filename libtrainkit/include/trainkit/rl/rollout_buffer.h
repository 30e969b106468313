#pragma once
/// Steps of simulators under the current policy, trained on for some epochs and then replaced.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/data/batch_source.h"
#include "trainkit/rl/gae.h"

namespace trainkit {

struct RolloutOptions {
  /// Steps of each simulator in a rollout, and the number of simulators.
  int64_t horizon = 0;
  int64_t simulators = 0;
  /// Rows of a mini-batch; divides horizon * simulators.
  int64_t batch_size = 0;
  /// Number of times that each row of a rollout is trained on.
  int64_t epochs = 1;
  /// Fields of which the value function is a function.
  std::vector<std::string> observations = {"obs"};
  GaeOptions gae = {};
  /// Gives the advantages of each mini-batch mean 0 and standard deviation 1.
  bool normalize_advantage = true;
  /// Random seed of the order of rows.
  uint64_t seed = 0;
  /// Device of the rows.
  at::Device device = at::kCPU;
};

/// What a step of all N simulators has led to.
struct StepOutcome {
  /// float32 (N).
  at::Tensor reward;
  /// bool (N): the task of the simulator's episode ended; the episode was cut off. Both: terminated counts. After
  /// either the simulator has been reset in the same step: its next observation is the first of a new episode.
  at::Tensor terminated, truncated;
  /// One tensor (N, shape...) per field of RolloutOptions::observations: the last observation of each episode that was
  /// truncated. Other rows are not read. May be empty if none was.
  std::vector<at::Tensor> final_observations = {};
};

/// A rollout of horizon x simulators rows as a source of mini-batches. One epoch of the source is one rollout: it has
/// epochs * horizon * simulators / batch_size mini-batches. The order of rows is a function of (seed, rollout, epoch,
/// position).
///
///   auto rollout = RolloutBuffer::create({{"obs", at::kFloat, {4}}, {"action", at::kLong, {}}, {"log_prob",
///   at::kFloat, {}}},
///                                        {.horizon = 128, .simulators = 64, .batch_size = 2048, .epochs = 4}).value();
///   rollout->collect_with([&](RolloutBuffer& rollout) -> absl::Status {
///     at::NoGradGuard no_grad;
///     while (!rollout.is_full()) {
///       const at::Tensor observation = pool.observation();
///       auto [action, log_prob, value] = act(*net, observation);
///       rollout.add({observation, action, log_prob}, value);
///       rollout.add_outcome(pool.step(action));
///     }
///     return rollout.finish({pool.observation()}, [&](const Batch& rows) { return net->value(rows["obs"]); });
///   });
///   auto result = trainer.fit(*rollout, loss).value();
///
/// Each row has the fields of create(), then these, all float32 scalars: "value" (as recorded), "advantage" and
/// "return" (see gae()). A mask of allowed actions, a version of the weights or the like is a field of your own.
///
/// Threads: one thread at a time, the one that steps. A rollout in progress is not saved: a resumed run collects it
/// again. Pass the simulators, and generators of your own, as FitOptions::state. If the callback depends on these and
/// on the default generators alone, a resumed run has the same bits.
class RolloutBuffer final : public BatchSource {
 public:
  using Collect = std::function<absl::Status(RolloutBuffer& rollout)>;
  /// Returns the values, float32 (R) or (R, 1), of R rows with the fields of RolloutOptions::observations.
  using ValueFunction = std::function<at::Tensor(const Batch& observations)>;

  /// Returns an error of exit code 2 if options are out of range, or a field has no place or a reserved name.
  static absl::StatusOr<std::unique_ptr<RolloutBuffer>> create(std::vector<FieldSpec> fields,
                                                               const RolloutOptions& options);
  ~RolloutBuffer() override;

  /// Makes next() call `collect` when the rows are used up: it fills and finishes the rollout. Without it the program
  /// fills the rollout itself before each epoch of the source.
  void collect_with(Collect collect);

  // ---- Filling. Each step of the rollout: add(), then add_outcome().

  /// Records the rows (N, shape...) of a step, one tensor per field of create(), and the values (N) or (N, 1) that the
  /// policy gave to the observations. Copies them to the device. Throws c10::ValueError if they do not fit, or the
  /// rollout is full.
  void add(const std::vector<at::Tensor>& rows, const at::Tensor& value);
  /// Records what the step has led to. Throws c10::ValueError if tensors do not fit.
  void add_outcome(const StepOutcome& outcome);
  /// Whether all steps are recorded.
  bool is_full() const;
  /// Computes advantages and returns on the device, and makes the rollout the source's next epoch. `next_observations`:
  /// one tensor (N, shape...) per field of RolloutOptions::observations, after the last step. `value` is called once,
  /// with these rows and the last observations of all truncated episodes. Error: kFailedPrecondition unless the rollout
  /// is full.
  absl::Status finish(const std::vector<at::Tensor>& next_observations, const ValueFunction& value);

  /// All rows of the rollout, (horizon, simulators, shape...), by field. Throws c10::IndexError for an unknown field.
  const at::Tensor& field(std::string_view name) const;

  // ---- Source of mini-batches.

  /// Error of kFailedPrecondition without collect_with() if the rows are used up and no new rollout is finished.
  absl::StatusOr<std::optional<Batch>> next() override;
  const std::vector<FieldSpec>& fields() const override;
  std::optional<int64_t> epoch_length() const override;
  int64_t epoch() const override;
  int64_t position() const override;
  void stop(absl::Status reason) override;

  /// Of the episodes that ended in the last rollout: "episode_return" and "episode_length" (means), "episodes"
  /// (number). The first two are missing if none ended. The Trainer logs them with its records.
  std::map<std::string, double> metrics() const override;

  /// State: "rollout", "position", unfinished episodes, and "states.<name>.<key>" of the program's states. The rows of
  /// a rollout that is being trained on are in files().
  StateDict state_dict() const override;
  absl::Status load_state_dict(const StateDict& state) override;
  std::vector<PendingFile> files() override;
  absl::Status load_files(const std::map<std::string, ReadableFile>& files) override;

 private:
  class Impl;
  explicit RolloutBuffer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
