#pragma once
/// Defines the model and the data that the checks of `trainkit doctor --verify` train on.

#include <ATen/Functions.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <utility>
#include <vector>

#include "nn/gpu/fused_ops.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/nn/functional.h"
#include "trainkit/train/loss.h"

namespace trainkit::tool {

inline constexpr int64_t kNetInputs = 24, kNetClasses = 10;

/// A multilayer perceptron that uses our fused kernels. Input (N, kNetInputs), output (N, kNetClasses), float32. With
/// dropout it also has BatchNorm, so that buffers change in training.
struct VerifyNetImpl : torch::nn::Module {
  explicit VerifyNetImpl(double dropout, int64_t width = 96)
      : first(register_module("first", torch::nn::Linear(kNetInputs, width))),
        second(register_module("second", torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)))),
        out(register_module("out", torch::nn::Linear(width, kNetClasses))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        bias(register_parameter("bias", at::zeros({width}))),
        scale(register_parameter("scale", at::ones({width}))),
        shift(register_parameter("shift", at::zeros({width}))) {
    if (dropout > 0) norm = register_module("norm", torch::nn::BatchNorm1d(width));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor stream = first(x);
    if (norm) stream = norm(stream);
    const at::Tensor branch = drop(trainkit::detail::bias_gelu(second(stream), bias, /*by_tanh=*/false));
    return out(trainkit::detail::residual_layer_norm(stream, branch, {scale, shift, 1e-5}).normed);
  }

  torch::nn::Linear first, second, out;
  torch::nn::Dropout drop;
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor bias, scale, shift;
};
TORCH_MODULE(VerifyNet);

/// Returns random fields: x (rows, kNetInputs) float32, y (rows) int64, and factor (rows) float32, which multiplies the
/// loss. All factors are 1; a caller sets one to infinity to force a skipped step.
inline std::vector<std::pair<std::string, at::Tensor>> verify_rows(int64_t rows) {
  const at::Tensor x = at::randn({rows, kNetInputs});
  return {{"x", x}, {"y", x.slice(1, 0, kNetClasses).argmax(1)}, {"factor", at::ones({rows})}};
}

inline std::shared_ptr<const Dataset> verify_dataset(int64_t rows) {
  return std::make_shared<TensorDataset>(verify_rows(rows));
}

inline Batch verify_batch(int64_t rows) {
  const auto tensors = verify_rows(rows);
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {kNetInputs}}, {"y", at::kLong, {}}, {"factor", at::kFloat, {}}});
  return Batch(fields, {tensors[0].second, tensors[1].second, tensors[2].second});
}

/// Cross-entropy times the mean of "factor".
inline LossFunction verify_loss() {
  return make_loss_function([](VerifyNet& model, const Batch& batch) {
    return cross_entropy(model->forward(batch["x"]), batch["y"]) * batch["factor"].mean();
  });
}

}  // namespace trainkit::tool
