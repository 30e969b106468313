#pragma once
/// A model small enough to show the overhead of the training loop: an MLP 64-128-10, batches of 64, fused Adam, one
/// intra-op thread. Trainer and a hand-written loop read from a Prefetcher without workers.

#include <torch/torch.h>

#include <memory>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/logging/logger.h"
#include "trainkit/nn/functional.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

namespace trainkit::bench {

struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : hidden(register_module("hidden", torch::nn::Linear(64, 128))),
        out(register_module("out", torch::nn::Linear(128, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Mlp);

inline at::Tensor loss_of(Mlp& model, const Batch& batch) {
  return cross_entropy(model->forward(batch["x"]), batch["y"]);
}

struct MlpTask {
  MlpTask() {
    at::set_num_threads(1);
    torch::manual_seed(0);
    const auto dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{
        {"x", torch::randn({64 * 64, 64})}, {"y", torch::randint(10, {64 * 64})}});
    loader = Prefetcher::create(dataset, SequentialSampler(dataset->size()), {.batch_size = 64}).value();
    devices = DeviceReplicator::create([] { return Mlp(); }, {.device = at::kCPU}).value();
  }
  std::unique_ptr<Prefetcher> loader;
  std::unique_ptr<DeviceReplicator> devices;
};

/// A hand-written loop without `Trainer` and logging.
inline void by_hand(MlpTask& task, Optimizer& optimizer, int64_t steps) {
  Mlp model(std::dynamic_pointer_cast<MlpImpl>(task.devices->module()));
  for (int64_t step = 0; step < steps;) {
    auto batch = task.loader->next().value();
    if (!batch) continue;
    loss_of(model, *batch).backward();
    optimizer.step();
    optimizer.zero_grad();
    ++step;
  }
}

}  // namespace trainkit::bench
