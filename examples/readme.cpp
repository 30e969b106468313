#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

#include "trainkit/trainkit.h"
using namespace trainkit;

struct ClassifierImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(64, 128));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(128, 10));
  at::Tensor forward(const at::Tensor& x) { return out(hidden(x).relu()); }
};
TORCH_MODULE(Classifier);

int main() {
  at::manual_seed(7);
  at::Tensor x = at::randn({20'000, 64}), y = x.mm(at::randn({64, 10})).argmax(1);
  auto dataset = std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", y}});
  auto sampler = RandomSampler(dataset->size(), {.seed = 7});
  auto loader = Prefetcher::create(dataset, sampler, {.batch_size = 256, .num_workers = 2, .drop_last = true}).value();
  auto devices = DeviceReplicator::create([] { return Classifier(); }).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), {.max_epochs = 5}).value();
  auto loss = [](Classifier& m, const Batch& b) { return cross_entropy(m->forward(b["x"]), b["y"]); };
  auto result = trainer.fit(*loader, loss).value();
  std::cout << result.steps << " steps in " << result.epochs << " epochs on " << devices->device() << ", loss "
            << result.loss << "\n";
}
