#include "trainkit/train/weights.h"

#include <set>

#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

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

absl::Status load_weights(torch::nn::Module& model, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  NamedTensors tensors;
  for (const std::string& name : file.names()) {
    TRAINKIT_ASSIGN_OR_RETURN(at::Tensor tensor, file.tensor(name));
    tensors.emplace_back(name, std::move(tensor));
  }
  return load_named_tensors(model, tensors, path);
}

}  // namespace trainkit
