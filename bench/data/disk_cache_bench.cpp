// Reads decoded images of 224 x 224 from a packed file in random order: the cost of every epoch after the first. The
// floor copies the same rows from plain memory into a ring of the same size. The peer: peers/decoded_cache.py.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <random>

#include "rounds.h"
#include "trainkit/core/error.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"

namespace trainkit {
namespace disk_cache {

constexpr int kWorkers = 2;
constexpr int64_t kRows = 2048, kPicture = 224 * 224 * 3, kBatch = 64, kSlots = 2 * kWorkers;

/// Images as a decoder would return them.
class Pictures final : public Dataset {
 public:
  int64_t size() const override { return kRows; }
  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {{"x", at::kByte, {224, 224, 3}}, {"y", at::kLong, {}}};
    return fields;
  }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    for (int64_t i = 0; i < kPicture; ++i) out.row<uint8_t>(0, at)[i] = static_cast<uint8_t>(key.index * 31 + i * i);
    *out.row<int64_t>(1, at) = key.index;
  }
};

/// Copies random images from memory; each thread has its own slots.
class Floor {
 public:
  Floor() : pictures_(kRows * kPicture, 7), ring_(kSlots * kBatch * kPicture), order_(kRows) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(1));
  }
  double operator()(double duration) {
    return bench::threaded_rate(kWorkers, duration, [&](int thread) {
      const int64_t batch = next_[thread * 16]++ * kWorkers + thread;
      uint8_t* slot = ring_.data() + batch % kSlots * kBatch * kPicture;
      for (int64_t i = 0; i < kBatch; ++i) {
        std::memcpy(slot + i * kPicture, pictures_.data() + order_[(batch * kBatch + i) % kRows] * kPicture, kPicture);
      }
      return static_cast<double>(kBatch);
    });
  }

 private:
  std::vector<uint8_t> pictures_, ring_;
  std::vector<int64_t> order_;
  int64_t next_[kWorkers * 16] = {};
};

void BM_DecodedCache(benchmark::State& state) {
  const char* chosen = std::getenv("TRAINKIT_BENCH_DIR");
  const auto folder = chosen ? std::filesystem::path(chosen) : std::filesystem::temp_directory_path();
  const std::string path = (folder / "trainkit-bench-decoded.rows").string();
  const auto cached = DiskCachedDataset::open(std::make_shared<Pictures>(), path, "pictures");
  if (!cached.ok() || !(*cached)->build(kWorkers).ok()) return state.SkipWithError("cannot make the cache");
  auto loader = Prefetcher::create(*cached, RandomSampler(kRows, {.seed = 1}),
                                   {.batch_size = kBatch,
                                    .num_workers = kWorkers,
                                    .prefetch_factor = static_cast<int>(kSlots / kWorkers),
                                    .persistent_workers = true,
                                    .drop_last = true})
                    .value();
  Floor floor;
  const auto piece = [&] {
    const auto batch = loader->next().value();
    return batch ? static_cast<double>(batch->size()) : 0.0;
  };
  bench::run_rounds(
      state, {{"pictures", [&](double duration) { return bench::rate(duration, piece); }}, {"memcpy", std::ref(floor)}},
      0.5);
  std::filesystem::remove(path);
}
BENCHMARK(BM_DecodedCache)->UseManualTime()->Iterations(5);

}  // namespace disk_cache
}  // namespace trainkit
