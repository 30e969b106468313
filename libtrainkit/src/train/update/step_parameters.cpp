#include "train/update/step_parameters.h"

#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "distributed/shards/parameter_shards.h"
#include "optim/optimizer_parts.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// The error of add_param_group() after the training state was divided.
absl::Status later_group() {
  return to_status(
      {.exit_code = ExitCode::kUsage,
       .id = "train.frozen",
       .problem = "a parameter group was added after the training state was divided (sharding)",
       .hint = "add all groups before TrainStep or Trainer is created, or create a new DeviceReplicator and "
               "optimizer for each phase of training; without sharding groups can be added later"},
      absl::StatusCode::kInvalidArgument);
}

}  // namespace

void add_parameters(ReplicaStrategy& devices, Optimizer& optimizer) {
  if (is_sharded(optimizer)) return;
  if (devices.sharding() == Sharding::kNone) {
    if (optimizer.param_groups().empty()) optimizer.add_param_groups(optimizer.groups_for(*devices.module()));
    return;
  }
  std::vector<ParamGroup> groups = OptimizerParts::of(optimizer).take_groups();
  if (groups.empty()) groups = optimizer.groups_for(*devices.module());
  std::unordered_set<const void*> whole;
  for (const ParamGroup& group : groups) {
    if (!group.orthogonalize) continue;
    for (const NamedParameter& parameter : group.params) whole.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  devices.divide_parameters(
      [&](const at::Tensor& parameter) { return whole.contains(parameter.unsafeGetTensorImpl()); });
  const ParameterShards* shards = devices.shards();
  for (ParamGroup& group : groups) {
    for (NamedParameter& parameter : group.params) parameter.tensor = shards->part(parameter.tensor);
  }
  add_shards(optimizer, std::move(groups), devices, /*copy=*/0);
}

void add_shards(Optimizer& optimizer, std::vector<ParamGroup> groups, ReplicaStrategy& devices, int64_t copy) {
  ParameterShards* shards = devices.shards(copy);
  const auto bucket_of = [shards](const at::Tensor& part) {
    if (!shards->is_part(part)) throw absl::BadStatusOrAccess(later_group());
    return shards->layout().bucket_of(shards->index_of_part(part));
  };
  add_shards(optimizer, std::move(groups), [&devices](const auto& values) { devices.sum_over_shards(values); },
             {.bucket_of = bucket_of, .on_updated = [shards](size_t bucket) { shards->gathering().start(bucket); }});
}

}  // namespace trainkit::detail
