/// Compares the loader with the machine's memory bandwidth and with LibTorch's own loader.

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <malloc.h>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "data/datasets/copy_rows.h"
#include "rounds.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace prefetcher {

using bench::Contestant;

constexpr int kWorkers = 2;
constexpr int64_t kRows = 100'000, kWidth = 256, kBatch = 256;  // rows of 1 KB and a label

struct Table {
  at::Tensor x = torch::rand({kRows, kWidth}), y = torch::randint(10, {kRows}, torch::kLong);
  std::vector<uint32_t> order = [] {
    std::vector<uint32_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), std::mt19937_64(1));
    return rows;
  }();
};

Table& table() {
  static Table instance;
  return instance;
}

// Loops of memcpy into rings of 8 batches, one ring per thread; the second loop also prefetches the row 8 positions
// ahead.
class Floor {
 public:
  explicit Floor(bool prefetch)
      : prefetch_(prefetch), x_(kWorkers * kRing * kBatch * kWidth), y_(kWorkers * kRing * kBatch) {}

  double operator()(double duration) {
    return bench::threaded_rate(kWorkers, duration,
                                [&](int thread) { return prefetch_ ? fill<true>(thread) : fill<false>(thread); });
  }

 private:
  static constexpr int64_t kRing = 8;

  template <bool kPrefetch>
  double fill(int thread) {
    const int64_t batch = next_[thread * 16]++;
    const int64_t slot = thread * kRing + batch % kRing,
                  at = (batch * kWorkers + thread) * kBatch % (kRows - kBatch - 8);
    const float* rows = table().x.const_data_ptr<float>();
    const int64_t* labels = table().y.const_data_ptr<int64_t>();
    const uint32_t* order = table().order.data() + at;
    for (int64_t i = 0; i < kBatch; ++i) {
      if constexpr (kPrefetch)
        prefetch_bytes(reinterpret_cast<const std::byte*>(rows + order[i + 8] * kWidth), kWidth * 4);
      std::memcpy(&x_[(slot * kBatch + i) * kWidth], rows + order[i] * kWidth, kWidth * 4);
      y_[slot * kBatch + i] = labels[order[i]];
    }
    return 1;
  }

  bool prefetch_;
  std::vector<float> x_;
  std::vector<int64_t> y_;
  int64_t next_[kWorkers * 16] = {};
};

// Idiomatic use of LibTorch's loader: one index_select per batch and field.
struct TorchRows : torch::data::datasets::BatchDataset<TorchRows, torch::data::Example<>> {
  torch::data::Example<> get_batch(torch::ArrayRef<size_t> rows) override {
    auto index = torch::empty({static_cast<int64_t>(rows.size())}, torch::kLong);
    std::memcpy(index.data_ptr(), rows.data(), rows.size() * 8);
    return {table().x.index_select(0, index), table().y.index_select(0, index)};
  }
  std::optional<size_t> size() const override { return kRows; }
};

struct TorchRow : torch::data::datasets::Dataset<TorchRow> {
  torch::data::Example<> get(size_t row) override { return {table().x[row], table().y[row]}; }
  std::optional<size_t> size() const override { return kRows; }
};

template <class Loader>
class TorchRate {
 public:
  explicit TorchRate(Loader loader) : loader_(std::move(loader)), at_(loader_->begin()) {}
  double operator()(double duration) {
    return bench::rate(duration, [&] {
      benchmark::DoNotOptimize(at_->data);
      if (++at_ == loader_->end()) at_ = loader_->begin();
      return 1;
    });
  }

 private:
  Loader loader_;
  decltype(loader_->begin()) at_;
};

template <class Dataset>
Contestant torch_loader(const std::string& name, Dataset dataset) {
  auto loader = torch::data::make_data_loader(std::move(dataset),
                                              torch::data::DataLoaderOptions().batch_size(kBatch).workers(kWorkers));
  return {name, [rate = std::make_shared<TorchRate<decltype(loader)>>(std::move(loader))](double duration) {
            return (*rate)(duration);
          }};
}

// A dataset that only implements get.
class RowByRow final : public Dataset {
 public:
  int64_t size() const override { return rows_.size(); }
  const std::vector<FieldSpec>& fields() const override { return rows_.fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override { rows_.get(key, out, at); }
  void prefetch(int64_t index) const override { rows_.prefetch(index); }

 private:
  TensorDataset rows_{{{"x", table().x}, {"y", table().y}}};
};

std::shared_ptr<Dataset> rows() {
  return std::make_shared<TensorDataset>(TensorDataset({{"x", table().x}, {"y", table().y}}));
}

Contestant ours(const std::string& name, std::shared_ptr<Dataset> dataset, int prefetch_factor = 8,
                int64_t batch_size = kBatch) {
  std::shared_ptr<Prefetcher> loader = Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 7}),
                                                          {.batch_size = batch_size,
                                                           .num_workers = kWorkers,
                                                           .prefetch_factor = prefetch_factor,
                                                           .persistent_workers = true})
                                           .value();
  return {name, [loader](double duration) {
            return bench::rate(duration, [&] {
              auto batch = loader->next().value();
              benchmark::DoNotOptimize(batch);
              return batch ? 1 : 0;
            });
          }};
}

// "assist", an option of earlier versions, stays in the names: results are compared by name.
void BM_Rows(benchmark::State& state) {
  at::set_num_threads(1);
  bench::run_rounds(state, {ours("batches", rows(), state.range(1)),
                            {"memcpy", Floor(false)},
                            {"prefetched_memcpy", Floor(true)},
                            torch_loader("torch_get_batch", TorchRows())});
}
BENCHMARK(BM_Rows)
    ->ArgNames({"assist", "prefetch_factor"})
    ->ArgsProduct({{0}, {2, 8, 16}})
    ->UseManualTime()
    ->Iterations(10);

void BM_RowByRow(benchmark::State& state) {
  at::set_num_threads(1);
  bench::run_rounds(state, {ours("batches", std::make_shared<RowByRow>()), ours("batch_path", rows()),
                            torch_loader("torch_get", TorchRow().map(torch::data::transforms::Stack<>()))});
}
BENCHMARK(BM_RowByRow)->UseManualTime()->Iterations(10);

// ---- Windows of 257 tokens at random positions of 100 M, converted from 16 to 64 bits: a batch of 16 is typical of a
// language model.

constexpr int64_t kTokens = 100'000'000, kWindow = 257, kWindows = 16;

const std::vector<uint16_t>& tokens() {
  static const std::vector<uint16_t> instance = [] {
    std::vector<uint16_t> ids(kTokens);
    RandomStream random(1);
    for (auto& id : ids) id = static_cast<uint16_t>(random.below(50257));
    return ids;
  }();
  return instance;
}

class TokenWindows final : public Dataset {
 public:
  int64_t size() const override { return kTokens - kWindow; }
  const std::vector<FieldSpec>& fields() const override {
    static const std::vector<FieldSpec> fields = {{"tokens", at::kLong, {kWindow}}};
    return fields;
  }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    widen(from_ + key.index, kWindow, out.row<int64_t>(0, at));
  }
  void get_batch(std::span<const RowKey> keys, const BatchView& out) const override {
    for (const RowKey& key : keys) prefetch(key.index);
    for (size_t i = 0; i < keys.size(); ++i) get(keys[i], out, static_cast<int64_t>(i));
  }
  void prefetch(int64_t index) const override {
    prefetch_bytes(reinterpret_cast<const std::byte*>(from_ + index), kWindow * 2);
  }

 private:
  const uint16_t* from_ = tokens().data();
};

// The same loop alone, into rings of 16 batches; the second loop prefetches all windows of a batch first.
class WindowFloor {
 public:
  explicit WindowFloor(bool prefetch) : prefetch_(prefetch) {}

  double operator()(double duration) {
    return bench::threaded_rate(kWorkers, duration, [&](int thread) {
      RandomStream random(++next_[thread * 16] * kWorkers + thread);
      int64_t* out = &memory_[(thread * 16 + next_[thread * 16] % 16) * kWindows * kWindow];
      const uint16_t* windows[kWindows];
      for (const uint16_t*& window : windows) {
        window = tokens().data() + random.below(kTokens - kWindow);
        if (prefetch_) prefetch_bytes(reinterpret_cast<const std::byte*>(window), kWindow * 2);
      }
      for (int64_t i = 0; i < kWindows; ++i) widen(windows[i], kWindow, out + i * kWindow);
      return kWindows * (kWindow - 1);
    });
  }

 private:
  bool prefetch_;
  std::vector<int64_t> memory_ = std::vector<int64_t>(kWorkers * 16 * kWindows * kWindow);
  uint64_t next_[kWorkers * 16] = {};
};

void BM_TokenWindows(benchmark::State& state) {
  at::set_num_threads(1);
  auto ours_in_tokens = ours("batches", std::make_shared<TokenWindows>(), state.range(1), kWindows);
  bench::run_rounds(
      state, {{"tokens", [=](double duration) { return ours_in_tokens.rate(duration) * kWindows * (kWindow - 1); }},
              {"memory", WindowFloor(false)},
              {"prefetched_memory", WindowFloor(true)}});
}
BENCHMARK(BM_TokenWindows)
    ->ArgNames({"assist", "prefetch_factor"})
    ->ArgsProduct({{0}, {16, 32, 64}})
    ->UseManualTime()
    ->Iterations(10);

// ---- Time to the first batch, and the memory of two workers.

std::shared_ptr<Dataset> rows_of(int64_t row_bytes) {
  return std::make_shared<TensorDataset>(TensorDataset({{"x", torch::zeros({1000, row_bytes}, torch::kByte)}}));
}

void BM_FirstBatch(benchmark::State& state) {
  const int64_t row_bytes = state.range(0) * 1024 / kBatch;
  auto dataset = rows_of(row_bytes);
  std::vector<double> milliseconds;
  for (auto _ : state) {
    const auto start = bench::Clock::now();
    auto loader =
        Prefetcher::create(dataset, RandomSampler(1000), {.batch_size = kBatch, .num_workers = kWorkers}).value();
    auto batch = loader->next().value();
    const double seconds = bench::seconds_since(start);
    state.SetIterationTime(seconds);
    milliseconds.push_back(1e3 * seconds);
    batch.reset();
    loader.reset();
  }
  state.counters["median_ms"] = bench::median(milliseconds);
  state.counters["least_ms"] = *std::min_element(milliseconds.begin(), milliseconds.end());
}
BENCHMARK(BM_FirstBatch)
    ->ArgName("slot_kb")
    ->Arg(264)
    ->Arg(24 * 1024)
    ->UseManualTime()
    ->Iterations(100)
    ->Unit(benchmark::kMillisecond);

int64_t anonymous_kilobytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") break;
  }
  int64_t kilobytes = 0;
  status >> kilobytes;
  return kilobytes;
}

void BM_TwoWorkersMemory(benchmark::State& state) {
  auto dataset = rows();
  double beyond = 0, ring = 0;
  for (auto _ : state) {
    const int64_t before = anonymous_kilobytes();
    auto loader = Prefetcher::create(
                      dataset, RandomSampler(kRows),
                      {.batch_size = kBatch, .num_workers = kWorkers, .prefetch_factor = 8, .persistent_workers = true})
                      .value();
    for (int i = 0; i < 1000; ++i) benchmark::DoNotOptimize(loader->next().value());
    ring = static_cast<double>(loader->stats().allocations * kBatch * (kWidth * 4 + 8)) / 1024;
    beyond = std::max(beyond, static_cast<double>(anonymous_kilobytes() - before) - ring);
  }
  state.counters["ring_kb"] = ring;
  state.counters["beyond_ring_kb"] = beyond;
}
BENCHMARK(BM_TwoWorkersMemory)->Iterations(3);

}  // namespace prefetcher
}  // namespace trainkit
