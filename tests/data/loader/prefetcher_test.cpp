#include "trainkit/data/prefetcher.h"

#include <ATen/Parallel.h>

#include <ctime>
#include <thread>

#include "data/loader/prefetcher_rows.h"
#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using Catch::Contains;

TEST_CASE("Prefetcher delivers the rows in the sampler's order for any number of workers", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const bool persistent = GENERATE(true, false);
  const int prefetch_factor = GENERATE(1, 2, 9);
  const RandomSampler sampler(103, {.seed = 7});
  auto loader = Prefetcher::create(numbers(103), sampler,
                                   {.batch_size = 10,
                                    .num_workers = workers,
                                    .prefetch_factor = prefetch_factor,
                                    .persistent_workers = persistent})
                    .value();
  CHECK(loader->batches_per_epoch() == 11);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order(103), rows, indices;
    sampler.fill(epoch, 0, order);
    CHECK(loader->epoch() == epoch);
    while (auto batch = loader->next().value()) {
      append(rows, labels(*batch));
      indices.insert(indices.end(), batch->row_indices().begin(), batch->row_indices().end());
      CHECK(((*batch)["x"].select(1, 2) == (*batch)["y"] * 3 + 2).all().item<bool>());
      CHECK(batch->size() == (rows.size() == 103 ? 3 : 10));
    }
    CHECK(rows == order);
    CHECK(indices == order);
  }
}

TEST_CASE("Prefetcher reports all bad options at once", "[data][prefetcher]") {
  const auto loader = Prefetcher::create(numbers(4), SequentialSampler(4),
                                         {.batch_size = 0,
                                          .num_workers = -1,
                                          .prefetch_factor = 0,
                                          .timeout = std::chrono::milliseconds(-5),
                                          .max_bad_samples = -2});
  REQUIRE_FALSE(loader.ok());
  CHECK(loader.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(exit_code(loader.status()) == ExitCode::kUsage);
  const std::string message(loader.status().message());
  CHECK_THAT(message,
             Contains("batch_size must be >= 1, got 0") && Contains("num_workers must be in 0..1024, got -1") &&
                 Contains("prefetch_factor must be in 1..64, got 0") && Contains("timeout must be >= 0 ms, got -5") &&
                 Contains("max_bad_samples must be >= -1, got -2"));
  CHECK_FALSE(Prefetcher::create(nullptr, SequentialSampler(4), {}).ok());
  CHECK_FALSE(Prefetcher::create(numbers(4), std::shared_ptr<const Sampler>(), {}).ok());
  CHECK_FALSE(Prefetcher::create(numbers(4), SequentialSampler(4), {.device = at::kMeta}).ok());
  CHECK_FALSE(Prefetcher::create(numbers(4), SequentialSampler(4), {.prefetch_factor = 65}).ok());
}

TEST_CASE("Prefetcher drops an incomplete last batch with drop_last", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  auto loader = sequential(numbers(25), {.batch_size = 10, .num_workers = workers, .drop_last = true});
  CHECK(loader->batches_per_epoch() == 2);
  CHECK(drain(*loader) == range(0, 20));
  CHECK(drain(*loader) == range(0, 20));
}

TEST_CASE("Prefetcher without rows, or with fewer than a batch, ends its epochs at once", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  const bool persistent = GENERATE(true, false);
  const PrefetcherOptions options{
      .batch_size = 10, .num_workers = workers, .persistent_workers = persistent, .drop_last = true};
  for (const int64_t rows : {0, 9}) {
    auto loader = sequential(numbers(rows), options);
    for (int epoch = 0; epoch < 3; ++epoch) {
      CHECK(loader->epoch() == epoch);
      CHECK_FALSE(loader->next().value().has_value());
    }
  }
}

TEST_CASE("A batch size far above the number of rows gives one batch of all rows", "[data][prefetcher]") {
  const int64_t batch_size = GENERATE(int64_t{1} << 40, std::numeric_limits<int64_t>::max());
  const int workers = GENERATE(0, 2);
  auto loader =
      Prefetcher::create(numbers(4), SequentialSampler(4), {.batch_size = batch_size, .num_workers = workers}).value();
  CHECK(loader->batches_per_epoch() == 1);
  for (int epoch = 0; epoch < 2; ++epoch) CHECK(drain(*loader) == range(0, 4));
  loader->seek(5, 1);
  CHECK(loader->at_epoch_end());
}

TEST_CASE("Prefetcher can abandon an epoch and start again", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const bool persistent = GENERATE(true, false);
  auto loader = sequential(numbers(100), {.batch_size = 10, .num_workers = workers, .persistent_workers = persistent});
  for (int i = 0; i < 3; ++i) loader->next().value();
  CHECK(loader->position() == 3);
  loader->seek(0, 0);
  CHECK(drain(*loader) == range(0, 100));
  CHECK(loader->epoch() == 1);
  for (int i = 0; i < 3; ++i) loader->next().value();
  loader->seek(2, 9);
  CHECK(drain(*loader) == range(90, 100));
  loader->seek(5, 10);
  CHECK(loader->epoch() == 5);
  CHECK_FALSE(loader->next().value().has_value());
  CHECK(loader->epoch() == 6);
  CHECK(drain(*loader) == range(0, 100));
  CHECK_THROWS_AS(loader->seek(0, 11), c10::IndexError);
  CHECK_THROWS_AS(loader->seek(-1, 0), c10::IndexError);
}

TEST_CASE("Prefetcher allocates no batch memory after warm-up", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2, 7);
  const int prefetch_factor = GENERATE(2, 8);
  auto loader = sequential(
      numbers(1000),
      {.batch_size = 16, .num_workers = workers, .prefetch_factor = prefetch_factor, .persistent_workers = true});
  const int64_t slots = workers == 0 ? 2 : workers * prefetch_factor;
  std::optional<Batch> kept;  // held during the next call, as in a loop that declares its batch outside
  for (int epoch = 0; epoch < 6; ++epoch) {
    while ((kept = loader->next().value())) CHECK(labels(*kept)[0] == kept->row_indices()[0]);
    CHECK(loader->stats().allocations <= slots);
  }
}

TEST_CASE("A batch that is kept retains its rows", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1, 2);
  auto loader = sequential(numbers(200), {.batch_size = 10, .num_workers = workers, .persistent_workers = true});
  std::vector<Batch> batches;
  std::vector<at::Tensor> tensors, views;
  for (int i = 0; i < 20; ++i) {
    auto batch = loader->next().value();
    if (i % 3 == 0) tensors.push_back((*batch)["y"]);
    if (i % 3 == 1) views.push_back((*batch)["x"].slice(0, 2, 4));
    if (i % 3 == 2) batches.push_back(std::move(*batch));
  }
  drain(*loader);
  drain(*loader);
  loader.reset();  // and outlives the loader
  for (size_t i = 0; i < tensors.size(); ++i) CHECK(tensors[i][9].item<int64_t>() == static_cast<int64_t>(i) * 30 + 9);
  for (size_t i = 0; i < views.size(); ++i)
    CHECK(views[i][0][0].item<int64_t>() == (static_cast<int64_t>(i) * 30 + 12) * 3);
  for (size_t i = 0; i < batches.size(); ++i) {
    CHECK(labels(batches[i]) == range(static_cast<int64_t>(i) * 30 + 20, static_cast<int64_t>(i) * 30 + 30));
    CHECK(batches[i].row_indices()[3] == static_cast<int64_t>(i) * 30 + 23);
  }
}

TEST_CASE("Changes that a consumer makes to a batch's tensors do not affect the next batch", "[data][prefetcher]") {
  const int workers = GENERATE(0, 1);
  auto dataset =
      std::make_shared<TensorDataset>(TensorDataset({{"x", torch::ones({60, 4})}, {"y", torch::arange(60)}}));
  auto loader = sequential(dataset, {.batch_size = 6, .num_workers = workers, .persistent_workers = true});
  for (int i = 0; i < 30; ++i) {
    auto batch = loader->next().value();
    if (!batch) continue;
    at::Tensor x = (*batch)["x"];
    REQUIRE(x.sizes() == at::IntArrayRef({6, 4}));
    REQUIRE_FALSE(x.requires_grad());
    REQUIRE(x.is_leaf());
    REQUIRE(x.sum().item<float>() == 24);
    switch (i % 4) {
      case 0:
        x.requires_grad_();
        break;
      case 1:
        x.unsqueeze_(0);
        break;
      case 2:
        x.t_();
        break;
      default:
        x.zero_();
        break;
    }
  }
}

TEST_CASE("Batches created in inference mode can be used for training later", "[data][prefetcher]") {
  auto loader = sequential(numbers(20), {.batch_size = 5});
  {
    c10::InferenceMode evaluation;
    drain(*loader);
  }
  auto batch = loader->next().value();
  CHECK_FALSE((*batch)["x"].is_inference());
}

TEST_CASE("Prefetcher loads the first batches of the next epoch before this one ends", "[data][prefetcher]") {
  const int workers = GENERATE(1, 2);
  const Door second_epoch;
  auto dataset = hooked(40, [&](const RowKey& key) {
    if (key.epoch == 1) second_epoch.wait();
  });
  auto loader = sequential(dataset, {.batch_size = 10, .num_workers = workers, .persistent_workers = true});
  for (int i = 0; i < 4; ++i) CHECK(labels(*loader->next().value()) == range(i * 10, i * 10 + 10));
  second_epoch.await(1);  // a worker starts before the end of this epoch is requested
  CHECK(loader->epoch() == 0);
  CHECK(loader->position() == 4);
  second_epoch.open();
  CHECK_FALSE(loader->next().value().has_value());
  CHECK(drain(*loader) == range(0, 40));
}

TEST_CASE("Prefetcher without persistent_workers ends its threads and frees its memory after the epoch",
          "[data][prefetcher]") {
  std::atomic<int64_t> reads{0};
  auto dataset = hooked(40, [&](const RowKey& key) { reads += key.epoch == 0; });
  const int64_t before = thread_count();
  auto loader = sequential(dataset, {.batch_size = 10, .num_workers = 3, .persistent_workers = false});
  CHECK(thread_count() == before);  // none until the first batch is requested
  loader->next().value();
  CHECK(thread_count() == before + 3);
  drain(*loader);
  CHECK(thread_count() == before);
  CHECK(reads == 40);  // no row of the next epoch was read in advance
  drain(*loader);
  CHECK(thread_count() == before);
}

TEST_CASE("Workers run LibTorch with one thread without affecting other threads", "[data][prefetcher]") {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  std::atomic<int> most{0};
  auto dataset = hooked(40, [&](const RowKey&) {
    for (int seen = most; at::get_num_threads() > seen && !most.compare_exchange_weak(seen, at::get_num_threads());) {
    }
  });
  auto loader = sequential(dataset, {.batch_size = 4, .num_workers = 2, .persistent_workers = true});
  for (int i = 0; i < 20 || most == 0; ++i) loader->next().value();
  CHECK(most == 1);
  CHECK(at::get_num_threads() == 3);
  int inherited = 0;
  std::thread([&] { inherited = at::get_num_threads(); }).join();
  CHECK(inherited == 3);
  at::set_num_threads(before);
}

TEST_CASE("Prefetcher marks the rows that pad a rank", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  const DistributedSampler sampler(SequentialSampler(10), {.rank = 3, .world_size = 4, .tail = UnevenTail::kPad});
  auto loader = Prefetcher::create(numbers(10), sampler, {.batch_size = 2, .num_workers = workers}).value();
  auto first = loader->next().value();
  CHECK(labels(*first) == std::vector<int64_t>{3, 7});
  CHECK(first->padding_rows() == 0);
  auto last = loader->next().value();
  CHECK(labels(*last) == std::vector<int64_t>{1});
  CHECK(last->padding_rows() == 1);
}

TEST_CASE("Prefetcher counts its work", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  auto slow = hooked(20, [](const RowKey&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  auto loader = sequential(slow, {.batch_size = 4, .num_workers = workers});
  CHECK(loader->stats().wait_fraction() == 0);
  drain(*loader);
  const PrefetcherStats stats = loader->stats();
  CHECK(stats.batches == 5);
  CHECK(stats.rows == 20);
  CHECK(stats.read_seconds >= 0.02);
  CHECK(stats.wait_seconds > 0);
  CHECK(stats.wait_fraction() > 0);
  CHECK(stats.wait_fraction() <= 1);
  CHECK(stats.ready_batches <= 5 * std::max(1, workers * 2));
}

TEST_CASE("Prefetcher's statistics distinguish a slow consumer from a slow loader", "[data][prefetcher]") {
  auto loader = sequential(numbers(400), {.batch_size = 10, .num_workers = 2, .persistent_workers = true});
  while (auto batch = loader->next().value()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const PrefetcherStats stats = loader->stats();
  CHECK(stats.consumer_seconds >= 0.07);
  CHECK(stats.wait_seconds < stats.consumer_seconds);
  CHECK(stats.ready_batches > stats.batches);  // usually more than one batch was ready
}

TEST_CASE("A wait is counted while it lasts, and the longest one is kept", "[data][prefetcher]") {
  const test::Door door;
  auto behind_the_door = hooked(2, [=](const RowKey& key) {
    if (key.index == 0) door.wait();
  });
  auto loader = sequential(behind_the_door, {.batch_size = 1, .num_workers = 1});
  CHECK(loader->stats().wait_seconds == 0);
  std::thread consumer([&] { drain(*loader); });
  double waited = 0;
  for (int i = 0; i < 60'000 && waited < 0.02; ++i) {  // a minute at most
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    waited = loader->stats().wait_seconds;
  }
  CHECK(waited >= 0.02);
  CHECK(loader->stats().longest_wait_seconds >= waited);
  CHECK(loader->stats().batches == 0);
  door.open();
  consumer.join();
  const PrefetcherStats stats = loader->stats();
  CHECK(stats.wait_seconds >= waited);
  CHECK(stats.longest_wait_seconds >= waited);
  CHECK(stats.longest_wait_seconds <= stats.wait_seconds);
  CHECK(stats.batches == 2);
  CHECK(loader->stats().wait_seconds == stats.wait_seconds);  // the wait has ended
}

TEST_CASE("CPU time is distinguished from time in reads, including threads that have ended", "[data][prefetcher]") {
  const bool persistent = GENERATE(false, true);
  const auto spent = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const auto busy = hooked(20, [=](const RowKey&) {
    for (const double start = spent(); spent() - start < 2e-3;) {
    }
  });
  const auto asleep = hooked(20, [](const RowKey&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  auto working = sequential(busy, {.batch_size = 4, .num_workers = 2, .persistent_workers = persistent});
  auto waiting = sequential(asleep, {.batch_size = 4, .num_workers = 2, .persistent_workers = persistent});
  CHECK(working->reader_times().cpu_seconds == 0);
  drain(*working);
  drain(*waiting);
  CHECK(working->reader_times().cpu_seconds >= 0.04);
  CHECK(waiting->reader_times().cpu_seconds < 0.5 * waiting->stats().read_seconds);
  drain(*working);
  CHECK(working->reader_times().cpu_seconds >= 0.08);
}

TEST_CASE("A ring that ran empty with idle workers is longer in the next epoch, if allowed", "[data][prefetcher]") {
  const bool may = GENERATE(true, false), persistent = GENERATE(true, false);
  // One row of a quarter takes as long as the consumer needs for many rows.
  auto uneven = hooked(80, [](const RowKey& key) {
    if (key.index % 20 == 10) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  });
  auto loader = sequential(uneven, {.batch_size = 1,
                                    .num_workers = 2,
                                    .prefetch_factor = 1,
                                    .adaptive_prefetch = may,
                                    .persistent_workers = persistent});
  std::vector<int64_t> first, second;
  for (std::vector<int64_t>* epoch : {&first, &second}) {
    CHECK(loader->stats().prefetch_factor == (may && epoch == &second ? 4 : 1));
    while (auto batch = loader->next().value()) {
      for (const int64_t label : labels(*batch)) epoch->push_back(label);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  CHECK(first.size() == 80);
  CHECK(first == second);
}

TEST_CASE("A ring that never ran empty keeps its length", "[data][prefetcher]") {
  auto loader =
      sequential(numbers(40), {.batch_size = 2, .num_workers = 2, .prefetch_factor = 2, .adaptive_prefetch = true});
  while (auto batch = loader->next().value()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(loader->stats().prefetch_factor == 2);
}

}  // namespace
}  // namespace trainkit
