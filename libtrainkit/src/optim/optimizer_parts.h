#pragma once
// The state of an Optimizer, for the parts of the library that program it: TrainStep, LRScheduler, checkpoints.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "amp/scaling_state.h"
#include "optim/learning_rates.h"
#include "optim/parameter_buckets.h"
#include "optim/step_counts.h"
#include "trainkit/optim/optimizer.h"

namespace trainkit::detail {

/// Reads and copies tensors of a state whose values are not in memory.
struct StateTensors {
  std::function<absl::StatusOr<at::Tensor>(const at::Tensor&)> read;
  std::function<absl::Status(const at::Tensor& from, const at::Tensor& to)> copy;
};

/// Parts of parameters (Sharding) that an optimizer updates.
struct OptimizerShards {
  /// Returns the number of a part's bucket. Null: all are in one.
  std::function<size_t(const at::Tensor& part)> bucket_of = nullptr;
  /// A step calls it for each bucket as soon as it has updated its parts.
  std::function<void(size_t bucket)> on_updated = nullptr;
  /// Optimizers of the other replicas' parts in this process, in their order, which keep their state as long as this
  /// one.
  std::vector<std::unique_ptr<Optimizer>> mirrors = {};
};

class OptimizerParts {
 public:
  /// The only way to an optimizer's parts.
  static OptimizerParts& of(Optimizer& optimizer) { return *optimizer.parts_; }
  static const OptimizerParts& of(const Optimizer& optimizer) { return *optimizer.parts_; }

  /// Optimizer::load_state_dict() for tensors that `tensors` reads where they are copied. After an error of copying
  /// some of them have been copied.
  static absl::Status load(Optimizer& optimizer, StateDict state, const StateTensors& tensors);

  OptimizerParts(double lr, double weight_decay, bool capturable)
      : weight_decay(weight_decay), capturable(capturable), rates(lr), counts(capturable) {}

  /// Adds a checked group, and allocates its state before it changes anything.
  void add(ParamGroup group, const std::vector<std::string>& kinds);
  /// Removes all parameters, with their state, and returns them. Throws after the first step.
  std::vector<ParamGroup> take_groups();
  /// Moves learning rates and step counts to the device, as `capturable` does from the start. Waits for the device once
  /// if they were not there.
  void count_on_device();
  /// Sets the learning rate of the group `name` that schedules multiply, by its multiple of `base`, so that schedules
  /// and saved states keep it. Does not synchronise. Throws c10::ValueError for an unknown group, one of two of the
  /// same name, or a rate that is not finite and >= 0.
  void set_group_lr(std::string_view name, double lr, double base);
  /// Copies the learning rates of an optimizer with the same groups, on the device if they are kept there. Does not
  /// synchronise.
  void set_lr_from(const OptimizerParts& other);
  /// Applies one step, unless `found_inf` is 1: calls `apply` with each bucket that has gradients.
  void step(const std::optional<at::Tensor>& found_inf, c10::function_ref<void(const ParameterBucket&)> apply);

  const double weight_decay;
  const bool capturable;
  ParameterBuckets parameters;
  LearningRates rates;
  StepCounts counts;
  OptimizerShards shards;
  /// Changes whenever a captured step() becomes invalid: a group was added, a state was loaded, learning rates moved to
  /// the device, or other parameters have gradients.
  int64_t version = 0;

 private:
  bool collect_gradients();
};

/// Adds groups of parts of parameters, possibly of 0 elements, for a rank or a replica that updates these parts. `sum`
/// is ScalingState::sum_over_shards.
void add_shards(Optimizer& optimizer, std::vector<ParamGroup> groups, SumOverShards sum, OptimizerShards shards);
bool is_sharded(const Optimizer& optimizer);

/// Parameters by the names of those entries of state_dict() whose tensors belong to them number by number: all of the
/// type ("state.<name>.exp_avg"), not the step counts. With sharding: parts of parameters.
std::map<std::string, at::Tensor> parameters_of_state(const Optimizer& optimizer);

/// Names of the tensors of the first parameter's state, without its step count; none without parameters.
std::vector<std::string> state_kinds(const Optimizer& optimizer);

}  // namespace trainkit::detail
