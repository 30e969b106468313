#include "trainkit/optim/adagrad.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>

#include "core/base/option_problems.h"
#include "optim/in_float.h"
#include "optim/rows_of.h"

namespace trainkit {

Adagrad::Adagrad(const AdagradOptions& options)
    : Optimizer({.lr = options.lr,
                 .weight_decay = options.weight_decay,
                 .capturable = options.capturable,
                 .takes_sparse = true,
                 .initial_state = options.initial_accumulator_value}),
      lr_decay_(options.lr_decay),
      initial_accumulator_value_(options.initial_accumulator_value),
      eps_(options.eps) {
  detail::OptionProblems problems;
  problems.require(detail::finite_not_negative(options.lr), "lr", "finite and >= 0", options.lr)
      .require(detail::finite_not_negative(options.weight_decay), "weight_decay", "finite and >= 0",
               options.weight_decay)
      .require(false, option_problems());
  TORCH_CHECK_VALUE(problems.empty(), "Adagrad: ", problems.text());
}

std::unique_ptr<Optimizer> Adagrad::create_like() const {
  const BaseOptions base = base_options();
  return std::make_unique<Adagrad>(AdagradOptions{.lr = base.lr,
                                                  .lr_decay = lr_decay_,
                                                  .weight_decay = base.weight_decay,
                                                  .initial_accumulator_value = initial_accumulator_value_,
                                                  .eps = eps_,
                                                  .capturable = base.capturable});
}

std::vector<std::pair<const char*, double*>> Adagrad::hyperparameters() {
  return {{"lr_decay", &lr_decay_}, {"initial_accumulator_value", &initial_accumulator_value_}, {"eps", &eps_}};
}

std::string Adagrad::option_problems() const {
  return detail::OptionProblems()
      .require(detail::finite_not_negative(lr_decay_), "lr_decay", "finite and >= 0", lr_decay_)
      .require(detail::finite_not_negative(initial_accumulator_value_), "initial_accumulator_value", "finite and >= 0",
               initial_accumulator_value_)
      .require(detail::finite_not_negative(eps_), "eps", "finite and >= 0", eps_)
      .text();
}

void Adagrad::apply(const FusedArguments& a) {
  std::vector<at::Tensor> params, gradients, steps, sums;
  for (size_t i = 0; i < a.params.size(); ++i) {
    if (a.gradients[i].is_sparse()) {
      update_rows(a, i);
      continue;
    }
    params.push_back(a.params[i]);
    gradients.push_back(a.gradients[i]);
    steps.push_back(a.steps[i]);
    sums.push_back(a.state[0][i]);
  }
  if (params.empty()) return;
  // The kernels of 16-bit types would round the sum of squares before it is used.
  detail::in_float(params, gradients, {sums}, [&](at::TensorList p, at::TensorList g, const auto& state) {
    const auto fused = [&](const auto& lr) {
      at::_fused_adagrad_(p, g, state[0], steps, lr, lr_decay_, a.weight_decay, eps_, /*maximize=*/false,
                          /*grad_scale=*/{}, a.found_inf);
    };
    a.device_lr.defined() ? fused(a.device_lr) : fused(a.lr);
  });
}

/// Updates the rows of a sparse gradient. With found_inf the device decides: weights and sums then keep their bits.
void Adagrad::update_rows(const FusedArguments& a, size_t i) const {
  TORCH_CHECK_VALUE(a.weight_decay == 0, "Adagrad: no weight decay with sparse gradients, got ", a.weight_decay,
                    ": set it to 0 for the group of the table");
  at::Tensor param = a.params[i], sum = a.state[0][i];
  const at::Tensor &gradient = a.gradients[i], values = gradient._values();
  if (values.numel() == 0) return;
  const bool decides_here = a.found_inf && a.found_inf->is_cpu();
  if (decides_here && *a.found_inf->const_data_ptr<float>() != 0) return;
  const at::Tensor slowed = (a.steps[i].to(at::kDouble) - 1) * lr_decay_ + 1;
  const at::Tensor rate = a.device_lr.defined() ? a.device_lr.to(at::kDouble) / slowed : slowed.reciprocal() * a.lr;
  const std::vector<at::indexing::TensorIndex> places = detail::rows_of(gradient);
  const at::Tensor old_sum = sum.index(places), old = param.index(places);
  at::Tensor now_sum = values.square().add_(old_sum);
  at::Tensor now = old - values / now_sum.sqrt().add_(eps_) * rate;
  if (a.found_inf && !decides_here) {
    const at::Tensor skip = a.found_inf->to(at::kBool);
    now_sum = at::where(skip, old_sum, now_sum);
    now = at::where(skip, old, now);
  }
  sum.index_put_(places, now_sum);
  param.index_put_(places, now);
}

}  // namespace trainkit
