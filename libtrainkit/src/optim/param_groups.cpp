#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "trainkit/optim/optimizer.h"

namespace trainkit {

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& model) {
  std::vector<NamedParameter> params;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    params.push_back({item.key(), item.value()});
  }
  return params;
}

std::vector<ParamGroup> default_param_groups(const torch::nn::Module& model) {
  ParamGroup decay{.params = {}, .name = "decay"};
  ParamGroup no_decay{.params = {}, .weight_decay = 0.0, .name = "no_decay"};
  for (NamedParameter& param : trainable_parameters(model)) {
    (param.tensor.dim() >= 2 ? decay : no_decay).params.push_back(std::move(param));
  }
  std::vector<ParamGroup> groups;
  for (ParamGroup* group : {&decay, &no_decay}) {
    if (!group->params.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

}  // namespace trainkit
