// Triplets with history check, as in the trainer's loader, with an idle consumer: MovieLens 100k (TRAINKIT_TEST_DATA)
// and data with the size of MovieLens 1M, batches of 2048. The peer: peers/triplets.py.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "gpt2_recommender/ratings.h"
#include "gpt2_recommender/triplets.h"
#include "made_up.h"
#include "rounds.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit::rec {
namespace {

void draw(benchmark::State& state, const Interactions& data, int workers) {
  const auto triplets =
      TripletDataset::create(data, bench::all_for_training(data), Part::kTrain, Negatives::kUniform).value();
  auto loader = Prefetcher::create(triplets, RandomSampler(triplets->size(), {.seed = 1}),
                                   {.batch_size = 2048,
                                    .num_workers = workers,
                                    .prefetch_factor = workers > 0 ? 16 : 2,
                                    .persistent_workers = true,
                                    .drop_last = true})
                    .value();
  const auto piece = [&] {
    const auto batch = loader->next().value();
    return batch ? static_cast<double>(batch->size()) : 0.0;
  };
  bench::run_rounds(state, {{"triplets", [&](double duration) { return bench::rate(duration, piece); }}}, 0.5);
}

void BM_Triplets(benchmark::State& state) {
  draw(state, bench::movielens_sized(1'000'000), static_cast<int>(state.range(0)));
}
BENCHMARK(BM_Triplets)->ArgName("workers")->Arg(0)->Arg(2)->UseManualTime()->Iterations(5);

void BM_TripletsMovieLens(benchmark::State& state) {
  const char* folder = std::getenv("TRAINKIT_TEST_DATA");
  const auto ratings = read_ratings(std::string(folder ? folder : "") + "/movielens/ml-100k");
  if (!ratings.ok()) {
    state.SkipWithError("needs MovieLens 100k in TRAINKIT_TEST_DATA");
    return;
  }
  draw(state, filter_ratings(*ratings).value(), static_cast<int>(state.range(0)));
}
BENCHMARK(BM_TripletsMovieLens)->ArgName("workers")->Arg(0)->Arg(2)->UseManualTime()->Iterations(5);

}  // namespace
}  // namespace trainkit::rec
