// A learning-rate schedule of one's own: warm-up, a constant part, and a fall by the inverse square root (the
// "trapezoid" with a soft end). A schedule is a pure function of the steps applied so far; the scheduler does the rest,
// also where a GradScaler skips steps or the count of steps is on a GPU.
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

  // Any schedule can be given a warm-up.
  const auto schedule =
      std::make_shared<WarmupLR>(WarmupOptions{.warmup_steps = 10}, std::make_shared<InverseSquareRootTail>(40));
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
