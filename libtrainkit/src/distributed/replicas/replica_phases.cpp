#include "distributed/replicas/replica_phases.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "distributed/replicas/replica_tools.h"

namespace trainkit::detail {

void ReplicaPhases::set(std::vector<std::set<std::string>> names) {
  phases_.clear();
  for (std::set<std::string>& one : names) phases_.push_back({.names = std::move(one)});
  current_ = 0;
  keeps_graph_ = false;
  if (on_change_) on_change_(/*is_new=*/true);
}

void ReplicaPhases::begin(size_t phase, bool keeps_graph) {
  current_ = phase;
  keeps_graph_ = keeps_graph;
  if (on_change_) on_change_(/*is_new=*/false);
}

void ReplicaPhases::list_inputs(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas, int64_t version) {
  if (phases_.empty()) return;
  Phase& phase = phases_[current_];
  if (phase.version == version) return;
  phase.version = version;
  phase.replicas = replicas;
  phase.inputs.clear();
  for (const auto& module : replicas) {
    std::vector<at::Tensor>& inputs = phase.inputs.emplace_back();
    for (const auto& [name, tensor] : of_phase(unique_parameters(*module))) {
      if (tensor.requires_grad()) inputs.push_back(tensor);
    }
  }
}

void ReplicaPhases::backward(int64_t replica, const at::Tensor& loss) const {
  if (phases_.empty()) return loss.backward();
  const Phase& phase = phases_[current_];
  const std::vector<at::Tensor>& inputs = phase.inputs[static_cast<size_t>(replica)];
  if (inputs.empty()) return;
  torch::autograd::edge_list ends = waiting_nodes(*phase.replicas[static_cast<size_t>(replica)]);
  if (ends.empty()) return torch::autograd::backward({loss}, {}, keeps_graph_, /*create_graph=*/false, inputs);
  for (const at::Tensor& input : inputs) ends.push_back(torch::autograd::impl::gradient_edge(input));
  torch::autograd::Engine::get_default_engine().execute({torch::autograd::impl::gradient_edge(loss)},
                                                        {at::ones_like(loss)}, keeps_graph_, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, ends);
}

ReplicaPhases::Named ReplicaPhases::of_phase(Named named) const {
  if (phases_.empty()) return named;
  std::erase_if(named, [&](const auto& one) { return !phases_[current_].names.contains(one.first); });
  return named;
}

}  // namespace trainkit::detail
