// The overhead of the training loop over a hand-written loop, with a model small enough to show it: an MLP 64-128-10,
// batches of 64, fused Adam, one intra-op thread. Both read from a Prefetcher without workers.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "../rounds.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/logging/logger.h"
#include "trainkit/nn/cross_entropy.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

namespace trainkit {
namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl()
      : hidden(register_module("hidden", torch::nn::Linear(64, 128))),
        out(register_module("out", torch::nn::Linear(128, 10))) {}
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(hidden(x))); }
  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Mlp);

at::Tensor loss_of(Mlp& model, const Batch& batch) { return cross_entropy(model->forward(batch["x"]), batch["y"]); }

struct Task {
  Task() {
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

double seconds(const std::function<void()>& work) {
  const auto start = bench::Clock::now();
  work();
  return bench::seconds_since(start);
}

/// A hand-written loop without `Trainer` and logging.
void by_hand(Task& task, Optimizer& optimizer, int64_t steps) {
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

class Discard final : public Logger {
 public:
  void log(const LogRecord& record) override { benchmark::DoNotOptimize(record.step); }
  absl::Status flush() override { return absl::OkStatus(); }
};

/// Alternates the hand-written loop and Trainer, so that other load on the machine affects both, with the same model
/// and data, so that memory addresses affect both. Counters are microseconds per step; `overhead` is the median of
/// their difference over the rounds.
void BM_TrainerOverhead(benchmark::State& state) {
  const int64_t steps = bench::quick() ? 100 : state.range(0);
  Task task;
  Adam adam({.lr = 1e-3});
  adam.add_param_groups(default_param_groups(*task.devices->module()));
  RunLogger logger;
  logger.add(std::make_unique<Discard>());
  std::vector<double> by_hand_us, trainer_us, overhead_us;
  auto trainer =
      Trainer::create(*task.devices, Adam({.lr = 1e-3}), {.max_epochs = 0, .max_steps = steps, .log_every = 10})
          .value();
  by_hand(task, adam, 100);
  for (auto _ : state) {
    const double a = seconds([&] { by_hand(task, adam, steps); });
    const double b = seconds([&] { trainer.fit(*task.loader, loss_of, {.logger = &logger}).value(); });
    by_hand_us.push_back(a / static_cast<double>(steps) * 1e6);
    trainer_us.push_back(b / static_cast<double>(steps) * 1e6);
    overhead_us.push_back(trainer_us.back() - by_hand_us.back());
    state.SetIterationTime(a + b);
  }
  state.counters["by_hand_us"] = bench::median(by_hand_us);
  state.counters["trainer_us"] = bench::median(trainer_us);
  state.counters["overhead_us"] = bench::median(overhead_us);
}
BENCHMARK(BM_TrainerOverhead)->Arg(10'000)->Iterations(10)->UseManualTime()->Unit(benchmark::kMillisecond);

/// The hand-written step only: the peer is the same step in Python with fused Adam (bench/peers/train_step.py).
void BM_MlpStep(benchmark::State& state) {
  Task task;
  Adam adam({.lr = 1e-3});
  adam.add_param_groups(default_param_groups(*task.devices->module()));
  by_hand(task, adam, 100);
  for (auto _ : state) by_hand(task, adam, 1);
}
BENCHMARK(BM_MlpStep)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trainkit
