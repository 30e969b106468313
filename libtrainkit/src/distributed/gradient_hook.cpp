#include "distributed/gradient_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

namespace trainkit::detail {

GradientHook::GradientHook(const at::Tensor& parameter, std::function<void()> note)
    : accumulator_(torch::autograd::impl::grad_accumulator(parameter)) {
  const auto hook = [note = std::move(note)](const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>&) {
    note();
    return outputs;
  };
  key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(hook));
}

GradientHook::~GradientHook() {
  if (accumulator_) accumulator_->del_post_hook(key_);
}

}  // namespace trainkit::detail
