#pragma once
/// A model that ranks divide among them, its whole checkpoint, and differences of results.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "test_util.h"
#include "train/divided/sharded_state.h"
#include "trainkit/optim/optimizer.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::test {

/// Layers whose sizes divide neither by the ranks nor by the alignment of a shard; the last one is used twice.
struct ShardedNetImpl : torch::nn::Module {
  ShardedNetImpl() {
    in = register_module("in", torch::nn::Linear(7, 33));
    wide = register_module("wide", torch::nn::Linear(33, 33));
    out = register_module("out", torch::nn::Linear(33, 3));
    unused = register_parameter("frozen", torch::ones({5}), /*requires_grad=*/false);
  }
  at::Tensor forward(const at::Tensor& x) { return out(wide(wide(in(x).relu()).relu()).relu()); }
  torch::nn::Linear in{nullptr}, wide{nullptr}, out{nullptr};
  at::Tensor unused;
};
TORCH_MODULE(ShardedNet);

/// The optimizer's tensors and, in the model, the averages; whole on rank 0.
inline CheckpointContents whole_checkpoint(const torch::nn::Module& model, const Optimizer& optimizer,
                                           const NamedTensors& averages,
                                           const trainkit::detail::ParameterShards* shards) {
  CheckpointContents contents;
  contents.model = averages;
  for (const auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) contents.optimizer.emplace_back(name, *tensor);
  }
  if (!shards) return contents;
  const auto divided = trainkit::detail::keep_own_parts(contents, averages, model, optimizer, *shards);
  // Ranks are threads, in which Catch2's macros must not be used.
  const absl::Status gathered = trainkit::detail::gather_parts(contents, divided, /*all=*/true, *shards);
  TORCH_CHECK(gathered.ok(), gathered.ToString());
  return contents;
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return INFINITY;
  return (a - b).abs().max().item<double>();
}

inline double difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, tensor] : a)
    most = std::max(most, b.contains(name) ? difference(tensor, b.at(name)) : INFINITY);
  return most;
}

}  // namespace trainkit::test
