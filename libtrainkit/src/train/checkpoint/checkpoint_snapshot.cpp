#include "train/checkpoint/checkpoint_snapshot.h"

#include <utility>
#include <variant>
#include <vector>

#include "train/checkpoint/checkpoint_state.h"

namespace trainkit {

CheckpointContents detail::snapshot_into(const CheckpointContents& contents, HostBuffer& buffer, LaterCopies* pending) {
  CheckpointContents copy = contents;
  std::vector<at::Tensor*> places, optimizer_places;
  for (auto& [name, tensor] : copy.model) places.push_back(&tensor);
  for (auto& [name, value] : copy.state) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) places.push_back(tensor);
  }
  for (auto& [name, tensor] : copy.optimizer) {
    (name.starts_with(detail::kLivePrefix) ? places : optimizer_places).push_back(&tensor);
  }
  if (pending) pending->first = places.size();
  places.insert(places.end(), optimizer_places.begin(), optimizer_places.end());
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* place : places) tensors.push_back(*place);
  std::vector<at::Tensor> on_host = copy_to_host(tensors, buffer, /*copies_cpu=*/true, pending);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(on_host[i]);
  return copy;
}

CheckpointContents snapshot(const CheckpointContents& contents) {
  detail::HostBuffer buffer;
  return detail::snapshot_into(contents, buffer, /*pending=*/nullptr);
}

}  // namespace trainkit
