#include "trainkit/nn/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <cmath>

namespace trainkit {
namespace {

/// Initialises as torch.nn.Linear: uniform in +-1/sqrt(in).
void initialise_linear(at::Tensor& weight) { torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0)); }

/// Gives the adapter's parameters their names in peft's files: lora_A.weight, lora_B.weight.
struct AdapterPartImpl : torch::nn::Module {};

}  // namespace

AdaptableImpl::AdaptableImpl(int64_t in_features, int64_t out_features, bool with_bias, bool weight_is_transposed)
    : weight_is_transposed_(weight_is_transposed) {
  TORCH_CHECK_VALUE(in_features >= 1 && out_features >= 1, "in_features and out_features must be >= 1, got ",
                    in_features, " and ", out_features);
  weight = register_parameter(
      "weight", weight_is_transposed ? at::empty({in_features, out_features}) : at::empty({out_features, in_features}));
  if (with_bias) bias = register_parameter("bias", at::zeros({out_features}));
}

AdaptableImpl::AdaptableImpl(at::Tensor of, bool weight_is_transposed)
    : weight_is_transposed_(weight_is_transposed), computes_(false) {
  weight = register_parameter("weight", of, of.requires_grad());
}

at::Tensor AdaptableImpl::forward(const at::Tensor& x) {
  at::Tensor out = at::linear(x, weight_is_transposed_ ? weight.t() : weight, bias);
  if (!lora_a_.defined() || merged_) return out;
  const at::Tensor input = dropout_ > 0 ? at::dropout(x, dropout_, is_training()) : x;
  const at::Tensor low = at::linear(input.reshape({-1, in_features()}), lora_a_);
  return at::addmm(out.reshape({-1, out_features()}), low, lora_b_.t(), /*beta=*/1, scaling_).view_as(out);
}

void AdaptableImpl::add_adapter(int64_t rank, double scaling, double dropout) {
  TORCH_CHECK(!lora_a_.defined(), "the layer already has an adapter");
  TORCH_CHECK_VALUE(rank >= 1, "rank must be >= 1, got ", rank);
  TORCH_CHECK_VALUE(dropout >= 0 && dropout < 1, "dropout must be in [0, 1), got ", dropout);
  TORCH_CHECK_VALUE(dropout == 0 || computes_, "the adapter of an exported layer has no dropout");
  at::Tensor start = at::empty({rank, in_features()});
  initialise_linear(start);
  register_adapter(start, at::zeros({out_features(), rank}));
  scaling_ = scaling;
  dropout_ = dropout;
}

void AdaptableImpl::register_adapter(const at::Tensor& a, const at::Tensor& b) {
  const auto add = [&](const char* name, const at::Tensor& values) {
    const auto part = register_module(name, std::make_shared<AdapterPartImpl>());
    return part->register_parameter("weight", values.to(weight.options()));
  };
  lora_a_ = add("lora_A", a);
  lora_b_ = add("lora_B", b);
}

void AdaptableImpl::copy_adapter(const AdaptableImpl& other) {
  if (!other.has_adapter()) return;
  const auto copy = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().clone() : tensor; };
  register_adapter(copy(other.lora_a_), copy(other.lora_b_));
  lora_a_.set_requires_grad(other.lora_a_.requires_grad());
  lora_b_.set_requires_grad(other.lora_b_.requires_grad());
  scaling_ = other.scaling_;
  dropout_ = other.dropout_;
  merged_ = other.merged_;
  weight_before_ = copy(other.weight_before_);
}

at::Tensor AdaptableImpl::adapted_weight() const {
  if (!lora_a_.defined() || merged_) return weight;
  const at::Tensor change = at::mm(lora_b_, lora_a_);  // (out, in)
  return at::add(weight, weight_is_transposed_ ? change.t() : change, scaling_);
}

void AdaptableImpl::remove_adapter() {
  if (!lora_a_.defined()) return;
  unregister_module("lora_A");
  unregister_module("lora_B");
  lora_a_ = lora_b_ = weight_before_ = at::Tensor();
  merged_ = false;
}

void AdaptableImpl::merge_adapter() {
  if (!lora_a_.defined() || merged_) return;
  const at::NoGradGuard no_grad;
  weight_before_ = weight.detach().clone();
  const at::Tensor change = at::mm(lora_b_, lora_a_).mul_(scaling_);  // (out, in)
  weight.add_(weight_is_transposed_ ? change.t() : change);
  merged_ = true;
}

void AdaptableImpl::unmerge_adapter() {
  if (!merged_) return;
  const at::NoGradGuard no_grad;
  weight.copy_(weight_before_);
  weight_before_ = at::Tensor();
  merged_ = false;
}

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, bool with_bias)
    : AdaptableImpl(in_features, out_features, with_bias, /*weight_is_transposed=*/false) {
  initialise_linear(weight);
  if (with_bias) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(in_features));
    torch::nn::init::uniform_(bias, -bound, bound);
  }
}

Conv1DImpl::Conv1DImpl(int64_t in_features, int64_t out_features)
    : AdaptableImpl(in_features, out_features, /*with_bias=*/true, /*weight_is_transposed=*/true) {
  torch::nn::init::normal_(weight, 0.0, 0.02);
}

}  // namespace trainkit
