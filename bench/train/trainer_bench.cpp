// The overhead of the training loop over a hand-written loop.
#include <benchmark/benchmark.h>

#include "mlp_task.h"
#include "rounds.h"

namespace trainkit {
namespace {

using bench::by_hand;
using bench::loss_of;
using bench::MlpTask;

double seconds(const std::function<void()>& work) {
  const auto start = bench::Clock::now();
  work();
  return bench::seconds_since(start);
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
  MlpTask task;
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
  MlpTask task;
  Adam adam({.lr = 1e-3});
  adam.add_param_groups(default_param_groups(*task.devices->module()));
  by_hand(task, adam, 100);
  for (auto _ : state) by_hand(task, adam, 1);
}
BENCHMARK(BM_MlpStep)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace trainkit
