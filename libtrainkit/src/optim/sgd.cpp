#include "trainkit/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <c10/util/Exception.h>

#include "core/base/option_problems.h"

namespace trainkit {

SGD::SGD(const SGDOptions& options)
    : Optimizer({.lr = options.lr, .weight_decay = options.weight_decay, .capturable = options.capturable}),
      momentum_(options.momentum),
      nesterov_(options.nesterov ? 1 : 0) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(detail::finite_not_negative(options.weight_decay), "weight_decay", "finite and >= 0",
               options.weight_decay)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "SGD: ", problems.text());
}

std::unique_ptr<Optimizer> SGD::create_like() const {
  const BaseOptions base = base_options();
  return std::make_unique<SGD>(SGDOptions{.lr = base.lr,
                                          .momentum = momentum_,
                                          .weight_decay = base.weight_decay,
                                          .nesterov = nesterov_ != 0,
                                          .capturable = base.capturable});
}

std::vector<std::string> SGD::state_names(const ParamGroup&) const {
  if (momentum_ == 0) return {};
  return {"momentum_buffer"};
}

std::vector<std::pair<const char*, double*>> SGD::hyperparameters() {
  return {{"momentum", &momentum_}, {"nesterov", &nesterov_}};
}

std::string SGD::option_problems() const {
  return detail::OptionProblems()
      .require(momentum_ >= 0 && momentum_ < 1, "momentum", "in [0, 1)", momentum_)
      .require(nesterov_ == 0 || nesterov_ == 1, "nesterov", "0 or 1", nesterov_)
      .require(nesterov_ == 0 || momentum_ > 0, "momentum", "> 0 with nesterov", momentum_)
      .text();
}

void SGD::apply(const FusedArguments& a) {
  const auto type = a.params.front().scalar_type();
  if (a.params.front().is_cpu() && (type == at::kBFloat16 || type == at::kHalf)) return apply_in_float(a);
  const auto fused = [&](const auto& lr) {
    at::_fused_sgd_(a.params, a.gradients, momentum_ == 0 ? at::TensorList() : at::TensorList(a.state[0]),
                    a.weight_decay, momentum_, lr, /*dampening=*/0, nesterov_ != 0, /*maximize=*/false,
                    /*is_first_step=*/false, /*grad_scale=*/{}, a.found_inf);
  };
  a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
}

/// Steps 16-bit parameters in float32: PyTorch 2.11's CPU kernel computes most of their elements without storing them.
void SGD::apply_in_float(const FusedArguments& a) {
  const auto widen = [](at::TensorList narrow) {
    std::vector<at::Tensor> wide;
    for (const at::Tensor& tensor : narrow) wide.push_back(tensor.to(at::kFloat));
    return wide;
  };
  const auto narrow = [](const std::vector<at::Tensor>& wide, at::TensorList into) {
    for (size_t i = 0; i < wide.size(); ++i) into[i].copy_(wide[i]);
  };
  const std::vector<at::Tensor> params = widen(a.params);
  const std::vector<at::Tensor> gradients = widen(a.gradients);
  std::vector<std::vector<at::Tensor>> state;
  for (const auto& list : a.state) state.push_back(widen(list));
  apply({.params = params,
         .gradients = gradients,
         .state = state,
         .steps = a.steps,
         .lr = a.lr,
         .device_lr = a.device_lr,
         .weight_decay = a.weight_decay,
         .found_inf = a.found_inf,
         .orthogonalize = false});
  narrow(params, a.params);
  for (size_t k = 0; k < state.size(); ++k) narrow(state[k], a.state[k]);
}

}  // namespace trainkit
