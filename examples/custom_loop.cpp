// A hand-written loop without Trainer: Prefetcher, autocast, GradScaler, clipping and a schedule.
#include <torch/torch.h>

#include <cstdio>

#include "trainkit/trainkit.h"

using namespace trainkit;

int main() {
  const at::Device device = torch::cuda::is_available() ? at::kCUDA : at::kCPU;
  const at::ScalarType dtype = device.is_cuda() ? at::kHalf : at::kBFloat16;
  torch::manual_seed(0);

  // 4,096 rows of 32 numbers; the class is the index of the largest among the first 10.
  const at::Tensor x = torch::randn({4096, 32});
  const auto dataset = std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"x", x}, {"y", x.slice(1, 0, 10).argmax(1)}});
  auto loader = Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 7}),
                                   {.batch_size = 128, .num_workers = 1, .persistent_workers = true, .device = device})
                    .value();

  torch::nn::Sequential model(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  model->to(device);
  AdamW optimizer({.lr = 3e-3});
  optimizer.add_param_groups(default_param_groups(*model));
  const int64_t epochs = 8;
  LRScheduler scheduler(
      optimizer,
      create_schedule({.name = "cosine", .total_steps = epochs * loader->batches_per_epoch(), .warmup_steps = 10})
          .value());
  GradScaler scaler({.enabled = dtype == at::kHalf});  // bfloat16 needs no scaling

  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    at::Tensor loss;
    while (auto batch = loader->next().value()) {
      {
        AutocastGuard amp(device, dtype);
        loss = cross_entropy(model->forward((*batch)["x"]), (*batch)["y"]);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      clip_grad_norm_(optimizer, 1.0);
      scaler.step(optimizer);  // skipped on the device if a gradient is not finite; no host synchronisation
      scaler.update();
      scheduler.step();
      optimizer.zero_grad();
    }
    std::printf("epoch %ld: loss %.3f, lr %.2e\n", static_cast<long>(epoch + 1), loss.item<double>(), scheduler.lr());
  }
}
