#pragma once
/// The measured step: an MLP 256-1024-1024-1024-10 (2.4 million parameters), 64 rows per replica, AdamW.

#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>

#include "trainkit/data/batch.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

namespace trainkit::bench {

constexpr int64_t kRowsPerReplica = 64;

struct WideMlpImpl : torch::nn::Module {
  WideMlpImpl() {
    using torch::nn::Linear, torch::nn::ReLU;
    layers = register_module("layers", torch::nn::Sequential(Linear(256, 1024), ReLU(), Linear(1024, 1024), ReLU(),
                                                             Linear(1024, 1024), ReLU(), Linear(1024, 10)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(WideMlp);

inline LossOutput wide_loss(torch::nn::Module& module, const Batch& batch) {
  return at::cross_entropy_loss(module.as<WideMlpImpl>()->forward(batch["x"]), batch["y"]);
}

inline Batch wide_batch(int64_t rows) {
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"x", at::kFloat, {256}}, {"y", at::kLong, {}}});
  return Batch(fields, {torch::randn({rows, 256}), torch::randint(10, {rows})});
}

inline double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace trainkit::bench
