#include "train/divided/sharded_copies.h"

#include <map>
#include <string>
#include <utility>
#include <variant>

#include "optim/optimizer_parts.h"
#include "train/divided/sharded_state.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

std::string prefix_of_copy(size_t copy) { return "copy." + std::to_string(copy) + "."; }

std::string average_name(const std::string& parameter) { return "average." + parameter; }

/// Removes the entries of further copies from `tensors`, and returns them by name.
std::map<std::string, at::Tensor> take_copies(NamedTensors& tensors) {
  std::map<std::string, at::Tensor> taken;
  NamedTensors others;
  for (auto& entry : tensors) {
    if (entry.first.starts_with("copy.")) {
      taken.insert(std::move(entry));
    } else {
      others.push_back(std::move(entry));
    }
  }
  tensors = std::move(others);
  return taken;
}

}  // namespace

std::vector<ShardedCopy> sharded_copies(const ReplicaStrategy& devices, const TrainStep& step) {
  std::vector<ShardedCopy> copies;
  for (size_t copy = 0; devices.shards() && copy < step.optimizers().size(); ++copy) {
    const auto number = static_cast<int64_t>(copy);
    copies.push_back({step.optimizers()[copy], devices.shards(number), step.averages(number)});
  }
  return copies;
}

void add_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents) {
  for (size_t copy = 1; copy < copies.size(); ++copy) {
    const StateDict state = copies[copy].optimizer->state_dict();
    for (const auto& [key, part] : parameters_of_state(*copies[copy].optimizer)) {
      contents.optimizer.emplace_back(prefix_of_copy(copy) + key, std::get<at::Tensor>(state.at(key)));
    }
    for (const auto& [name, average] : copies[copy].averages) {
      contents.optimizer.emplace_back(prefix_of_copy(copy) + average_name(name), average);
    }
  }
}

absl::Status join_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents) try {
  std::map<std::string, at::Tensor> others = take_copies(contents.optimizer);
  std::vector<PartsByName> of_state, of_averages;  // by copy
  for (const ShardedCopy& copy : copies) {
    of_state.push_back(parameters_of_state(*copy.optimizer));
    of_averages.push_back(parts_by_name(*copy.optimizer));
  }
  // Joins the entry `name` of all copies, which belongs to parts[copy] of them.
  const auto join = [&](const std::string& name, const std::string& parameter, const std::vector<PartsByName>& parts,
                        at::Tensor& first) {
    at::Tensor whole;
    for (size_t copy = 0; copy < copies.size(); ++copy) {
      const ParameterShards& shards = *copies[copy].shards;
      const size_t index = shards.index_of_part(parts[copy].at(parameter));
      if (copy == 0) whole = shards.layout().make_whole(index, first.scalar_type());
      shards.layout().put(index, copy == 0 ? first : others.at(prefix_of_copy(copy) + name), whole);
    }
    first = whole;
  };
  for (auto& [key, tensor] : contents.optimizer) {
    if (of_state[0].contains(key)) join(key, key, of_state, tensor);
  }
  std::map<std::string, at::Tensor*> model;
  for (auto& [name, tensor] : contents.model) model[name] = &tensor;
  for (const auto& [name, average] : copies[0].averages) {
    join(average_name(name), name, of_averages, *model.at(name));
  }
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

}  // namespace trainkit::detail
