#pragma once
/// A model with buffers that a step changes, and random batches for it.

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "trainkit/data/batch.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/train/loss.h"

namespace trainkit::test {

/// Dropout, BatchNorm and several layers, so that a step allocates in many places. 8 inputs, 4 classes.
struct BatchNormNetImpl : torch::nn::Module {
  explicit BatchNormNetImpl(int64_t width = 32)
      : hidden(register_module("hidden", torch::nn::Linear(8, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))),
        drop(register_module("drop", torch::nn::Dropout(0.3))),
        out(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out(drop(torch::gelu(norm(hidden(x))))); }
  torch::nn::Linear hidden;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear out;
};
TORCH_MODULE(BatchNormNet);

/// The same with a norm that can synchronise, and without dropout.
struct SyncNormNetImpl : torch::nn::Module {
  explicit SyncNormNetImpl(int64_t width = 32)
      : hidden(register_module("hidden", torch::nn::Linear(8, width))),
        norm(register_module("norm", SyncBatchNorm(width))),
        out(register_module("out", torch::nn::Linear(width, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::gelu(norm(hidden(x)))); }
  torch::nn::Linear hidden;
  SyncBatchNorm norm;
  torch::nn::Linear out;
};
TORCH_MODULE(SyncNormNet);

/// Rows of x (8) float32 and y () int64; a different `seed` gives different rows.
inline Batch random_batch(int64_t rows, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {8}}, {"y", at::kLong, {}}});
  return Batch(fields, {at::randn({rows, 8}, generator), at::randint(4, {rows}, generator, at::kLong)});
}

/// Cross-entropy with the metric "hits": the number of correct rows.
template <typename Model>
LossOutput loss_and_hits(Model& model, const Batch& batch) {
  const at::Tensor scores = model->forward(batch["x"]);
  LossOutput output(at::cross_entropy_loss(scores, batch["y"]));
  const at::NoGradGuard no_grad;
  output.metrics = {{"hits", scores.argmax(1).eq(batch["y"]).sum()}};
  return output;
}

}  // namespace trainkit::test
