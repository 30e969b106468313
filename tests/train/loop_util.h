#pragma once
/// A small task that tests of the training loop share.

#include <torch/torch.h>

#include <memory>

#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit::test {

/// 8 inputs, dropout, 4 classes: enough state (weights, Adam moments, random generator) to detect a wrong resume.
struct TinyNetImpl : torch::nn::Module {
  explicit TinyNetImpl(double dropout = 0.2)
      : hidden(register_module("hidden", torch::nn::Linear(8, 16))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))),
        drop(register_module("drop", torch::nn::Dropout(dropout))),
        out(register_module("out", torch::nn::Linear(16, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return out(drop(torch::relu(norm(hidden(x))))); }
  torch::nn::Linear hidden;
  torch::nn::LayerNorm norm;
  torch::nn::Dropout drop;
  torch::nn::Linear out;
};
TORCH_MODULE(TinyNet);

/// `rows` rows with the fields x (8) float32 and y () int64; the label depends on x.
inline std::shared_ptr<const Dataset> tiny_dataset(int64_t rows) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const at::Tensor x = at::randn({rows, 8}, generator);
  return std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"x", x}, {"y", x.slice(1, 0, 4).argmax(1)}});
}

inline at::Tensor tiny_loss(TinyNet& model, const Batch& batch) {
  return at::cross_entropy_loss(model->forward(batch["x"]), batch["y"]);
}

}  // namespace trainkit::test
