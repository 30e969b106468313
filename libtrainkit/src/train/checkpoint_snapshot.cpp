#include "train/checkpoint_snapshot.h"

#include <utility>
#include <variant>
#include <vector>

namespace trainkit {

CheckpointContents detail::snapshot_into(const CheckpointContents& contents, HostBuffer& buffer) {
  CheckpointContents copy = contents;
  std::vector<at::Tensor*> places;
  for (auto* tensors : {&copy.model, &copy.optimizer}) {
    for (auto& [name, tensor] : *tensors) places.push_back(&tensor);
  }
  for (auto& [name, value] : copy.state) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) places.push_back(tensor);
  }
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* place : places) tensors.push_back(*place);
  std::vector<at::Tensor> on_host = copy_to_host(tensors, buffer, /*copies_cpu=*/true);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(on_host[i]);
  return copy;
}

CheckpointContents snapshot(const CheckpointContents& contents) {
  detail::HostBuffer buffer;
  return detail::snapshot_into(contents, buffer);
}

}  // namespace trainkit
