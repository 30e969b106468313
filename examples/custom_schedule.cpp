// A custom learning-rate schedule: warm-up, a constant part, then decay by the inverse square root. A schedule is a
// pure function of the number of applied steps. The scheduler handles skipped steps of a GradScaler and a step count on
// the GPU.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <memory>

#include "trainkit/trainkit.h"

using namespace trainkit;

class InverseSquareRootTail : public LRSchedule {
 public:
  explicit InverseSquareRootTail(int64_t constant_steps) : constant_steps_(constant_steps) {}

  double factor(int64_t step) const override {
    if (step < constant_steps_) return 1.0;
    return std::sqrt(static_cast<double>(constant_steps_) / static_cast<double>(step));
  }

 private:
  int64_t constant_steps_;
};

int main() {
  torch::manual_seed(0);
  torch::nn::Linear model(8, 1);
  SGD optimizer({.lr = 0.1, .momentum = 0.9});
  optimizer.add_param_groups(default_param_groups(*model));

  // warmup_lr adds a warm-up to any schedule.
  const auto schedule = warmup_lr(/*warmup_steps=*/10, std::make_shared<InverseSquareRootTail>(40));
  LRScheduler scheduler(optimizer, schedule);

  const at::Tensor x = torch::randn({256, 8});
  const at::Tensor y = x.sum(1, /*keepdim=*/true);
  at::Tensor loss;
  for (int step = 0; step < 200; ++step) {
    if (step % 40 == 0 || step == 5) std::printf("step %3d: lr %.4f\n", step, scheduler.lr());
    loss = torch::mse_loss(model->forward(x), y);
    loss.backward();
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }
  std::printf("loss %.2e\n", loss.item<double>());
  return loss.item<double>() < 1e-3 ? 0 : 1;
}
