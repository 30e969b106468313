#include "distributed/shards/gradient_hook.h"

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

void accumulate_on_current_stream(const at::Tensor& parameter) {
  // A node runs on the stream of its input's metadata (Note [Streaming backwards] in torch/csrc/autograd/engine.cpp).
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  accumulator->clear_input_metadata();
  accumulator->add_input_metadata(parameter);
}

}  // namespace trainkit::detail
