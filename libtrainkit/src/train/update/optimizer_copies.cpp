#include "train/update/optimizer_copies.h"

#include <absl/status/statusor.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <utility>

#include "distributed/shards/parameter_shards.h"
#include "optim/optimizer_parts.h"
#include "train/losses/user_mistakes.h"
#include "train/retry/memory_recovery.h"
#include "train/update/step_parameters.h"
#include "trainkit/core/state_dict.h"

namespace trainkit::detail {
namespace {

/// Names of a model's parameters by tensor; a tied parameter has its first name.
std::map<const void*, std::string> names_of(const torch::nn::Module& model) {
  std::map<const void*, std::string> names;
  for (const auto& parameter : model.named_parameters()) {
    names.emplace(parameter.value().unsafeGetTensorImpl(), parameter.key());
  }
  return names;
}

}  // namespace

OptimizerCopies::OptimizerCopies(ReplicaStrategy& devices, Optimizer& optimizer, double ema_decay,
                                 MemoryRecovery& memory)
    : devices_(devices), memory_(memory), optimizers_{&optimizer} {
  if (!is_sharded(optimizer)) check_parameters(*devices.module(), optimizer);
  add_parameters(devices, optimizer);
  shards_ = devices.shards();
  shards_ ? create_shard_mirrors() : create_mirrors();
  for (const Optimizer* one : optimizers_) {
    if (ema_decay > 0) averages_.emplace_back(*one, ema_decay);
  }
  trained_version_ = devices.trained_version();
}

void OptimizerCopies::create_mirrors() {
  for (int64_t copy = 1; copy < devices_.weight_copies(); ++copy) {
    mirrors_.push_back(first().create_like());
    optimizers_.push_back(mirrors_.back().get());
  }
  add_groups();
  if (OptimizerParts::of(first()).counts.upper_bound() > 0) copy_state();
}

/// The same for copies whose optimizers update the parts that the first one does not. They keep their state for the
/// next TrainStep.
void OptimizerCopies::create_shard_mirrors() {
  auto& mirrors = OptimizerParts::of(first()).shards.mirrors;
  for (int64_t copy = 1; copy < devices_.weight_copies(); ++copy) {
    if (std::ssize(mirrors) < copy) {
      std::vector<ParamGroup> groups = first().param_groups();
      for (ParamGroup& group : groups) {
        for (NamedParameter& parameter : group.params) {
          parameter.tensor = devices_.shards(copy)->part(shards_->index_of_part(parameter.tensor));
        }
      }
      std::unique_ptr<Optimizer> mirror = first().create_like();
      add_shards(*mirror, std::move(groups), devices_, copy);
      mirrors.push_back(std::move(mirror));
    }
    optimizers_.push_back(mirrors[static_cast<size_t>(copy - 1)].get());
  }
  groups_ = first().param_groups().size();
}

/// Gives groups that the optimizer got since the last call to mirrors and averages.
void OptimizerCopies::add_groups() {
  const std::map<const void*, std::string> names = names_of(*devices_.module());
  check_parameters(*devices_.module(), first());
  for (; groups_ < first().param_groups().size(); ++groups_) {
    for (size_t copy = 1; copy < optimizers_.size(); ++copy) {
      const auto parameters = devices_.module(static_cast<int64_t>(copy))->named_parameters();
      ParamGroup group = first().param_groups()[groups_];
      for (NamedParameter& parameter : group.params) {
        parameter.tensor = parameters[names.at(parameter.tensor.unsafeGetTensorImpl())];
      }
      optimizers_[copy]->add_param_group(std::move(group));
    }
    for (size_t copy = 0; copy < averages_.size(); ++copy) {
      averages_[copy].add(optimizers_[copy]->param_groups()[groups_]);
    }
  }
}

bool OptimizerCopies::follow() {
  const bool adds_groups = groups_ < first().param_groups().size();
  if (adds_groups) add_groups();
  const bool other_trained = std::exchange(trained_version_, devices_.trained_version()) != devices_.trained_version();
  if (!adds_groups && !other_trained) return false;
  for (int64_t replica = 0; replica < devices_.replicas(); ++replica) {
    for (const at::Tensor& parameter : devices_.module(replica)->parameters()) {
      if (!parameter.requires_grad()) parameter.mutable_grad().reset();  // else momentum would move it
    }
  }
  return true;
}

void OptimizerCopies::copy_state() {
  const StateDict state = mirrors_.empty() ? StateDict{} : first().state_dict();
  for (const auto& mirror : mirrors_) {
    const absl::Status loaded = mirror->load_state_dict(state);
    if (!loaded.ok()) throw absl::BadStatusOrAccess(loaded);
  }
}

void OptimizerCopies::synchronize() {
  devices_.synchronize();
  if (shards_) return;
  for (size_t i = 1; i < averages_.size(); ++i) averages_[i].assign(averages_.front());
  copy_state();
}

NamedTensors OptimizerCopies::averages(int64_t copy) const {
  NamedTensors named;
  if (averages_.empty()) return named;
  const WeightAverage& average = averages_.at(static_cast<size_t>(copy));
  if (shards_) {
    size_t i = 0;
    for (const ParamGroup& group : first().param_groups()) {
      for (const NamedParameter& parameter : group.params) named.emplace_back(parameter.name, average.averages()[i++]);
    }
    return named;
  }
  const std::map<const void*, std::string> names = names_of(*devices_.module(copy));
  for (size_t i = 0; i < average.averages().size(); ++i) {
    named.emplace_back(names.at(average.weights()[i].unsafeGetTensorImpl()), average.averages()[i]);
  }
  return named;
}

void OptimizerCopies::swap_averages() {
  const c10::AutoGradMode no_grad(false);
  for (const WeightAverage& average : averages_) {
    for (size_t i = 0; i < average.averages().size(); ++i) {
      const at::Tensor weight = average.weights()[i].detach();
      at::Tensor before;
      memory_.run([&] { before = weight.clone(); });
      weight.copy_(average.averages()[i]);
      at::Tensor(average.averages()[i]).copy_(before);
    }
  }
  if (shards_ && !averages_.empty()) devices_.gather_weights();
}

void OptimizerCopies::update_averages(const std::vector<at::Tensor>& found_inf) const {
  for (size_t i = 0; i < averages_.size(); ++i) averages_[i].update(found_inf[i]);
}

}  // namespace trainkit::detail
