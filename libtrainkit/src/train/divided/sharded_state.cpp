#include "train/divided/sharded_state.h"

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optim/optimizer_parts.h"
#include "train/checkpoint/checkpoint_state.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
PartsByName parts_by_name(const Optimizer& optimizer) {
  PartsByName parts;
  for (const ParamGroup& group : optimizer.param_groups()) {
    for (const NamedParameter& parameter : group.params) parts[parameter.name] = parameter.tensor;
  }
  return parts;
}

namespace {

/// Tensors in one order on all ranks: the parameter's part, and the place of the part of a tensor that belongs to it.
using OwnParts = std::map<std::string, std::pair<const at::Tensor*, at::Tensor*>>;

/// Replaces parts by whole tensors on rank 0.
void gather(const OwnParts& own, const ParameterShards& shards) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& [key, entry] : own) pairs.emplace_back(*entry.first, *entry.second);
  std::vector<at::Tensor> whole = shards.gather(pairs);
  size_t i = 0;
  for (const auto& [key, entry] : own) *entry.second = std::move(whole[i++]);
}

DividedTensor describe(DividedTensor::Kind kind, const at::Tensor& part, const ParameterShards& shards) {
  const ShardLayout& layout = shards.layout();
  const size_t parameter = shards.index_of_part(part);
  return {.kind = kind,
          .part = part,
          .shape = layout.shape(parameter).sizes().vec(),
          .cuts = layout.is_row_major(parameter) ? layout.cuts(parameter) : std::vector<int64_t>()};
}

/// Returns the tensor of this name, or nullptr.
const at::Tensor* find(const PartsByName& parts, const std::string& name) {
  const auto found = parts.find(name);
  return found == parts.end() ? nullptr : &found->second;
}

}  // namespace

DividedCheckpoint keep_own_parts(CheckpointContents& contents, const NamedTensors& averages,
                                 const torch::nn::Module& model, const Optimizer& optimizer,
                                 const ParameterShards& shards) {
  const PartsByName parts = parts_by_name(optimizer);
  PartsByName averaged, weights;
  for (const auto& [name, average] : averages) averaged[name] = parts.at(name);
  for (const auto& item : model.named_parameters()) {
    const at::Tensor* part = shards.find_part(item.value());
    // Weights that are not row-major stay whole: rank 0 has them.
    if (part && shards.layout().is_row_major(shards.index_of_part(*part))) weights[item.key()] = *part;
  }
  // The entries of a file that are divided, see Note [Averages in a checkpoint].
  std::map<std::string, std::pair<at::Tensor, DividedTensor::Kind>> in_model, in_optimizer;
  for (const auto& [name, part] : weights) {
    if (averaged.contains(name)) {
      in_optimizer[live_name(name)] = {part, DividedTensor::kWeight};
    } else {
      in_model[name] = {part, DividedTensor::kWeight};
    }
  }
  for (const auto& [name, part] : averaged) in_model[name] = {part, DividedTensor::kAverage};
  for (const auto& [name, part] : parameters_of_state(optimizer)) in_optimizer[name] = {part, DividedTensor::kState};
  const auto divide = [&](NamedTensors& tensors, DividedTensors& divided, const auto& entries) {
    std::erase_if(tensors, [&](auto& named) {
      const auto found = entries.find(named.first);
      if (found == entries.end()) return shards.layout().rank() > 0;
      const auto& [part, kind] = found->second;
      divided[named.first] = describe(kind, part, shards);
      if (kind == DividedTensor::kWeight) named.second = part;
      return false;
    });
  };
  DividedCheckpoint divided;
  divide(contents.model, divided.model, in_model);
  divide(contents.optimizer, divided.optimizer, in_optimizer);
  return divided;
}

absl::Status gather_parts(CheckpointContents& contents, const DividedCheckpoint& divided, bool all,
                          const ParameterShards& shards) try {
  for (const auto kind : {DividedTensor::kWeight, DividedTensor::kAverage, DividedTensor::kState}) {
    OwnParts own;
    const auto add = [&](NamedTensors& tensors, const DividedTensors& places) {
      for (auto& [name, tensor] : tensors) {
        const auto found = places.find(name);
        if (found == places.end() || found->second.kind != kind || (!all && !found->second.cuts.empty())) continue;
        own[name] = {&found->second.part, &tensor};
      }
    };
    add(contents.model, divided.model);
    add(contents.optimizer, divided.optimizer);
    if (!own.empty()) gather(own, shards);
  }
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

void load_averages(const NamedTensors& averages, const std::map<std::string, at::Tensor>& whole,
                   const Optimizer& optimizer, const ParameterShards& shards) {
  const PartsByName parts = parts_by_name(optimizer);
  for (const auto& [name, average] : averages) {
    at::Tensor(average).copy_(shards.layout().part_of(shards.index_of_part(parts.at(name)), whole.at(name)));
  }
}

StateDict parts_of_state(StateDict state, const Optimizer& optimizer, const ParameterShards& shards) {
  const PartsByName parts = parameters_of_state(optimizer);
  for (auto& [key, value] : state) {
    const at::Tensor* part = find(parts, key);
    at::Tensor* whole = std::get_if<at::Tensor>(&value);
    if (!part || !whole || !whole->defined()) continue;
    const size_t parameter = shards.index_of_part(*part);
    if (shards.layout().fits(parameter, *whole)) *whole = shards.layout().part_of(parameter, *whole);
  }
  return state;
}

}  // namespace trainkit::detail
