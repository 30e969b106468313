#include "train/sharded_state.h"

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trainkit::detail {
namespace {

using Parts = std::map<std::string, at::Tensor>;

/// The optimizer's parameters by name.
Parts parts_by_name(const Optimizer& optimizer) {
  Parts parts;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) parts[parameter.name] = parameter.tensor;
  }
  return parts;
}

/// Returns the part to which "state.<parameter>.<kind>" belongs, or nullptr: a step count is not divided.
const at::Tensor* part_of_entry(const std::string& key, const Parts& parts) {
  constexpr std::string_view kState = "state.";
  const size_t dot = key.rfind('.');
  if (!key.starts_with(kState) || dot <= kState.size() || key.substr(dot) == ".step") return nullptr;
  const auto found = parts.find(key.substr(kState.size(), dot - kState.size()));
  return found == parts.end() ? nullptr : &found->second;
}

}  // namespace

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
  optimizer.add_shards(std::move(groups), [shards](const at::Tensor& values) { shards->all_reduce(values); });
}

StateDict gather_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards) {
  const Parts parts = parts_by_name(optimizer);
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  std::vector<StateValue*> places;
  for (auto& [key, value] : state) {
    const at::Tensor* part = part_of_entry(key, parts);
    if (!part) continue;
    pairs.emplace_back(*part, std::get<at::Tensor>(value));
    places.push_back(&value);
  }
  std::vector<at::Tensor> whole = shards.gather(pairs);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(whole[i]);
  return state;
}

NamedTensors gather_averages(const NamedTensors& averages, const Optimizer& optimizer, const ParameterShards& shards) {
  const Parts parts = parts_by_name(optimizer);
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& [name, average] : averages) pairs.emplace_back(parts.at(name), average);
  const std::vector<at::Tensor> whole = shards.gather(pairs);
  NamedTensors named;
  for (size_t i = 0; i < whole.size(); ++i) named.emplace_back(averages[i].first, whole[i]);
  return named;
}

void load_averages(const NamedTensors& averages, const std::map<std::string, at::Tensor>& whole,
                   const Optimizer& optimizer, const ParameterShards& shards) {
  const Parts parts = parts_by_name(optimizer);
  for (const auto& [name, average] : averages) {
    at::Tensor(average).copy_(shards.part_of(parts.at(name), whole.at(name)));
  }
}

StateDict parts_of_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards) {
  const Parts parts = parts_by_name(optimizer);
  for (auto& [key, value] : state) {
    const at::Tensor* part = part_of_entry(key, parts);
    at::Tensor* whole = std::get_if<at::Tensor>(&value);
    if (part && whole && whole->defined() && shards.fits(*part, *whole)) *whole = shards.part_of(*part, *whole);
  }
  return state;
}

}  // namespace trainkit::detail
