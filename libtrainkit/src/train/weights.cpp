#include "trainkit/train/weights.h"

#include <set>

namespace trainkit {

NamedTensors named_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  std::set<const void*> seen;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
        tensors.emplace_back(item.key(), item.value().detach());
      }
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return tensors;
}

absl::Status load_named_tensors(torch::nn::Module& model, const NamedTensors& tensors, const std::string& where) {
  return copy_named_tensors(tensors, named_tensors(model), where);
}

}  // namespace trainkit
