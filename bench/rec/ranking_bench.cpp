// Full ranking of 6,040 users and 3,706 items, with history excluded and all scores, two threads. The peer:
// peers/full_ranking.py.
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include <random>

#include "gpt2_recommender/ranking.h"
#include "made_up.h"

namespace trainkit::rec {
namespace {

void BM_FullRanking(benchmark::State& state) {
  at::set_num_threads(2);
  const Interactions data = bench::movielens_sized(1'000'000);
  Split split = bench::all_for_training(data);
  for (size_t i = 0; i < split.parts.size(); ++i) split.parts[i] = i % 10 == 0 ? Part::kTest : Part::kTrain;
  const Ranking ranking = Ranking::create(data, split, {.ks = {5, 10, 20}}).value();
  const at::Tensor users = at::randn({6040, 64}), items = at::randn({3706, 64});
  for (auto _ : state) benchmark::DoNotOptimize(ranking.score(users, items));
}
BENCHMARK(BM_FullRanking)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace trainkit::rec
