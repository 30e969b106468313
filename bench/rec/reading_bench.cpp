// Reading of 5,000,000 events of 50,000 users and 40,000 items from a RecBole file, numbering of users and items, and
// the leave-one-out split: processor time. The peer: peers/read_ratings.py.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "gpt2_recommender/ratings.h"
#include "made_up.h"
#include "rounds.h"

namespace trainkit::rec {
namespace {

/// Writes `count` events with the popularity of bench::made_up_pairs.
void write_events(const std::string& path, int64_t count) {
  const Interactions pairs = bench::made_up_pairs(count / 100, count / 125, count);
  RandomStream random(1);
  std::ofstream file(path);
  file << "user_id:token\titem_id:token\trating:float\ttimestamp:float\n";
  for (int64_t i = 0; i < count; ++i) {
    file << fmt::format("{}\t{}\t{}\t{}\n", pairs.user[i] + 1, pairs.item[i] + 1, 1 + random.below(5),
                        1'000'000'000 + random.below(100'000'000));
  }
}

void BM_ReadRatings(benchmark::State& state) {
  const int64_t count = bench::quick() ? 50'000 : 5'000'000;
  const std::string path = (std::filesystem::temp_directory_path() / "trainkit_events.inter").string();
  write_events(path, count);
  std::vector<double> rates;
  for (auto _ : state) {
    const std::clock_t start = std::clock();
    const Interactions read = filter_ratings(read_ratings(path).value()).value();
    benchmark::DoNotOptimize(make_split(read, {.mode = "leave_one_out"}));
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    rates.push_back(static_cast<double>(count) / seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["events"] = bench::median(rates);
  std::filesystem::remove(path);
}
BENCHMARK(BM_ReadRatings)->UseManualTime()->Iterations(3);

}  // namespace
}  // namespace trainkit::rec
