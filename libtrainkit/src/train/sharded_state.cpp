#include "train/sharded_state.h"

#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trainkit/core/status.h"

namespace trainkit::detail {
PartsByName parts_by_name(const Optimizer& optimizer) {
  PartsByName parts;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) parts[parameter.name] = parameter.tensor;
  }
  return parts;
}

const at::Tensor* part_of_entry(const std::string& key, const PartsByName& parts) {
  constexpr std::string_view kState = "state.";
  const size_t dot = key.rfind('.');
  if (!key.starts_with(kState) || dot <= kState.size() || key.substr(dot) == ".step") return nullptr;
  const auto found = parts.find(key.substr(kState.size(), dot - kState.size()));
  return found == parts.end() ? nullptr : &found->second;
}

void add_parameters(DeviceReplicator& devices, Optimizer& optimizer) {
  if (optimizer.is_sharded()) return;
  if (devices.sharding() == Sharding::kNone) {
    if (optimizer.param_groups().empty()) optimizer.add_param_groups(optimizer.groups_for(*devices.module()));
    return;
  }
  std::vector<ParamGroup> groups = optimizer.take_param_groups();
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

void add_shards(Optimizer& optimizer, std::vector<ParamGroup> groups, DeviceReplicator& devices, int64_t copy) {
  ParameterShards* shards = devices.shards(copy);
  optimizer.add_shards(
      std::move(groups), [&devices](const auto& values) { devices.sum_over_shards(values); },
      [shards](const at::Tensor& part) { return shards->bucket_of(part); },
      [shards](size_t bucket) { shards->start_gathering(bucket); });
}

absl::Status gather_checkpoint(CheckpointContents& contents, const NamedTensors& averages, const Optimizer& optimizer,
                               const ParameterShards& shards) try {
  const PartsByName parts = parts_by_name(optimizer);
  std::map<std::string, std::pair<const at::Tensor*, at::Tensor*>> divided;  // in one order on all ranks
  for (auto& [key, tensor] : contents.optimizer) {
    if (const at::Tensor* part = part_of_entry(key, parts)) divided[key] = {part, &tensor};
  }
  std::set<std::string> averaged;
  for (const auto& [name, average] : averages) averaged.insert(name);
  for (auto& [name, tensor] : contents.model) {
    if (averaged.contains(name)) divided["average." + name] = {&parts.at(name), &tensor};
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& [key, entry] : divided) pairs.emplace_back(*entry.first, *entry.second);
  std::vector<at::Tensor> whole = shards.gather(pairs);
  size_t i = 0;
  for (const auto& [key, entry] : divided) *entry.second = std::move(whole[i++]);
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

void load_averages(const NamedTensors& averages, const std::map<std::string, at::Tensor>& whole,
                   const Optimizer& optimizer, const ParameterShards& shards) {
  const PartsByName parts = parts_by_name(optimizer);
  for (const auto& [name, average] : averages) {
    at::Tensor(average).copy_(shards.part_of(parts.at(name), whole.at(name)));
  }
}

StateDict parts_of_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards) {
  const PartsByName parts = parts_by_name(optimizer);
  for (auto& [key, value] : state) {
    const at::Tensor* part = part_of_entry(key, parts);
    at::Tensor* whole = std::get_if<at::Tensor>(&value);
    if (part && whole && whole->defined() && shards.fits(*part, *whole)) *whole = shards.part_of(*part, *whole);
  }
  return state;
}

}  // namespace trainkit::detail
