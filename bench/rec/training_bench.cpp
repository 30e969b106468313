// Epochs of bpr_mf as in the trainer (Trainer, Adam, triplets drawn by the loader), with the size of MovieLens 1M:
// 6,040 users, 3,706 items, 1,000,000 interactions, dimension 64, batches of 2048, two threads. The peer:
// peers/bpr_mf.py.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "gpt2_recommender/models.h"
#include "gpt2_recommender/triplets.h"
#include "made_up.h"
#include "rounds.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

namespace trainkit::rec {
namespace {

void BM_BprMfEpoch(benchmark::State& state) {
  at::set_num_threads(2);
  const Interactions data = bench::movielens_sized(bench::quick() ? 50'000 : 1'000'000);
  const auto triplets =
      TripletDataset::create(data, bench::all_for_training(data), Part::kTrain, Negatives::kUniform).value();
  auto loader = Prefetcher::create(triplets, RandomSampler(triplets->size(), {.seed = 1}),
                                   {.batch_size = 2048,
                                    .num_workers = static_cast<int>(state.range(0)),
                                    .prefetch_factor = 2,
                                    .persistent_workers = true,
                                    .drop_last = true})
                    .value();
  auto devices =
      DeviceReplicator::create([&] { return std::make_shared<BprMf>(6040, 3706, 64); }, {.device = at::kCPU}).value();
  const auto loss = [](BprMf& model, const Batch& batch) {
    return LossOutput(model.loss(batch["users"], batch["pos_items"], batch["neg_items"]));
  };
  std::vector<double> rates;
  for (auto _ : state) {
    auto trainer = Trainer::create(*devices, Adam({.lr = 1e-3}), {.max_epochs = 1, .log_every = 100}).value();
    loader->seek(0, 0);
    const auto start = bench::Clock::now();
    const auto result = trainer.fit(*loader, loss).value();
    const double seconds = bench::seconds_since(start);
    rates.push_back(static_cast<double>(result.steps_run) * 2048 / seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["samples"] = bench::median(rates);
}
BENCHMARK(BM_BprMfEpoch)->ArgName("workers")->Arg(0)->Arg(1)->UseManualTime()->Iterations(5);

}  // namespace
}  // namespace trainkit::rec
