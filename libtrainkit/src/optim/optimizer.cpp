#include "trainkit/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <unordered_set>
#include <utility>

#include "optim/optimizer_parts.h"

namespace trainkit {

Optimizer::Optimizer(const BaseOptions& options)
    : parts_(std::make_shared<detail::OptimizerParts>(options.lr, options.weight_decay, options.capturable)) {
  parts_->parameters.takes_sparse = options.takes_sparse;
  parts_->parameters.initial_state = options.initial_state;
}

Optimizer::BaseOptions Optimizer::base_options() const {
  return {.lr = lr(),
          .weight_decay = parts_->weight_decay,
          .capturable = parts_->capturable,
          .takes_sparse = parts_->parameters.takes_sparse,
          .initial_state = parts_->parameters.initial_state};
}

std::vector<ParamGroup> Optimizer::groups_for(const torch::nn::Module& model) const {
  return default_param_groups(model);
}

void Optimizer::reserve(const ParamGroup& group) {
  TORCH_CHECK_VALUE(!group.orthogonalize, "optimizer: only Muon takes a group with orthogonalize");
}

void Optimizer::add_param_group(ParamGroup group) {
  std::unordered_set<const void*> seen;
  std::erase_if(group.params,
                [&](const NamedParameter& param) { return !seen.insert(param.tensor.unsafeGetTensorImpl()).second; });
  parts_->parameters.check(group);
  const at::NoGradGuard no_grad;
  reserve(group);
  const std::vector<std::string> kinds = state_names(group);
  parts_->add(std::move(group), kinds);
}

void Optimizer::add_param_groups(std::vector<ParamGroup> groups) {
  for (ParamGroup& group : groups) add_param_group(std::move(group));
}

const std::vector<ParamGroup>& Optimizer::param_groups() const { return parts_->parameters.groups; }

double Optimizer::lr() const { return parts_->rates.lr(); }
double Optimizer::initial_lr() const { return parts_->rates.initial(); }
std::vector<double> Optimizer::group_lrs() const { return parts_->rates.of_groups(param_groups()); }

void Optimizer::set_lr(double lr) {
  parts_->rates.set(lr);
  parts_->rates.set_initial(lr);
}

void Optimizer::step() {
  stepped_without_scaler();
  apply_step(std::nullopt);
}

void Optimizer::step_unless(const at::Tensor& found_inf) { apply_step(found_inf); }

void Optimizer::apply_step(const std::optional<at::Tensor>& found_inf) {
  parts_->step(found_inf, [&](const detail::ParameterBucket& bucket) {
    static const at::Tensor kNone;
    const ParamGroup& group = param_groups()[bucket.group];
    const detail::LearningRates& rates = parts_->rates;
    apply({.params = bucket.params,
           .gradients = bucket.gradients,
           .state = bucket.state,
           .steps = bucket.steps,
           .lr = rates.of(group),
           .device_lr = rates.are_on_device() ? rates.on_device()[bucket.group] : kNone,
           .weight_decay = group.weight_decay.value_or(parts_->weight_decay),
           .found_inf = found_inf,
           .orthogonalize = group.orthogonalize});
  });
}

void Optimizer::zero_grad(bool set_to_none) { parts_->parameters.zero_grad(set_to_none); }
std::vector<at::Tensor> Optimizer::gradients() const { return parts_->parameters.gradients(); }
const at::Tensor& Optimizer::step_count() const { return parts_->counts.total(); }

}  // namespace trainkit
