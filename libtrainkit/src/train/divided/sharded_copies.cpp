#include "train/divided/sharded_copies.h"

#include <map>
#include <string>
#include <utility>
#include <variant>

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

std::vector<ShardedCopy> sharded_copies(const DeviceReplicator& devices, const TrainStep& step) {
  std::vector<ShardedCopy> copies;
  for (size_t copy = 0; devices.shards() && copy < step.optimizers().size(); ++copy) {
    const auto number = static_cast<int64_t>(copy);
    copies.push_back({step.optimizers()[copy], devices.shards(number), step.averages(number)});
  }
  return copies;
}

void add_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents) {
  for (size_t copy = 1; copy < copies.size(); ++copy) {
    const PartsByName parts = parts_by_name(*copies[copy].optimizer);
    for (const auto& [key, value] : copies[copy].optimizer->state_dict()) {
      const auto* tensor = std::get_if<at::Tensor>(&value);
      if (tensor && part_of_entry(key, parts)) contents.optimizer.emplace_back(prefix_of_copy(copy) + key, *tensor);
    }
    for (const auto& [name, average] : copies[copy].averages) {
      contents.optimizer.emplace_back(prefix_of_copy(copy) + average_name(name), average);
    }
  }
}

absl::Status join_state_of_copies(const std::vector<ShardedCopy>& copies, CheckpointContents& contents) try {
  std::map<std::string, at::Tensor> others = take_copies(contents.optimizer);
  std::vector<PartsByName> parts;
  for (const ShardedCopy& copy : copies) parts.push_back(parts_by_name(*copy.optimizer));
  const ShardLayout& layout = copies[0].shards->layout();
  const auto join = [&](const std::string& key, const std::string& parameter, at::Tensor& first) {
    const at::Tensor whole =
        layout.make_whole(copies[0].shards->index_of_part(parts[0].at(parameter)), first.scalar_type());
    for (size_t copy = 0; copy < copies.size(); ++copy) {
      const at::Tensor& numbers = copy == 0 ? first : others.at(prefix_of_copy(copy) + key);
      const ParameterShards& shards = *copies[copy].shards;
      shards.layout().put(shards.index_of_part(parts[copy].at(parameter)), numbers, whole);
    }
    first = whole;
  };
  for (auto& [key, tensor] : contents.optimizer) {
    if (!part_of_entry(key, parts[0])) continue;
    constexpr size_t kBegin = 6;  // "state."
    join(key, key.substr(kBegin, key.rfind('.') - kBegin), tensor);
  }
  std::map<std::string, at::Tensor*> model;
  for (auto& [name, tensor] : contents.model) model[name] = &tensor;
  for (const auto& [name, average] : copies[0].averages) join(average_name(name), name, *model.at(name));
  return absl::OkStatus();
} catch (...) {
  return status_from_current_exception();
}

}  // namespace trainkit::detail
