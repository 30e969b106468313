/// Reads that never return, and destruction at any moment.

#include <malloc.h>

#include <fstream>
#include <thread>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Catch::Contains;

// Reading row `row` waits at the gate until it is opened.
std::shared_ptr<const Dataset> stuck_at(int64_t size, int64_t row, const Door& door) {
  return hooked(size, [=](const RowKey& key) {
    if (key.index == row) door.wait();
  });
}

TEST_CASE("A stalled read ends at the timeout with an error that names worker and row", "[data][prefetcher]") {
  const int workers = GENERATE(1, 2, 7);
  const Door door;
  auto loader = sequential(stuck_at(100, 37, door), {.batch_size = 10, .num_workers = workers, .timeout = 100ms});
  std::vector<int64_t> rows;
  for (int i = 0; i < 3; ++i) append(rows, labels(*loader->next().value()));
  for (int again = 0; again < 2; ++again) {
    const auto batch = loader->next();
    REQUIRE_FALSE(batch.ok());
    CHECK(batch.status().code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(exit_code(batch.status()) == ExitCode::kStalledWorker);
    CHECK_THAT(std::string(batch.status().message()),
               Catch::Matches(".*worker [0-6]: stuck at row 37 \\(file37.jpg\\); its batch was started [0-9]+ ms ago; "
                              "no batch within 100 ms \\(position 30 of epoch 0\\)"));
  }
  // No row is lost if the storage answers later.
  door.open();
  absl::StatusOr<std::optional<Batch>> batch = loader->next();
  while (!batch.ok()) batch = loader->next();
  append(rows, labels(**batch));
  append(rows, drain(*loader));
  CHECK(rows == range(0, 100));
}

TEST_CASE("The row is reported through nested datasets", "[data][prefetcher]") {
  const Door door;
  auto inner = stuck_at(100, 40, door);
  std::vector<int64_t> backwards = range(0, 50);
  std::reverse(backwards.begin(), backwards.end());
  auto loader =
      sequential(std::make_shared<Subset>(inner, backwards), {.batch_size = 50, .num_workers = 1, .timeout = 50ms});
  const auto batch = loader->next();
  CHECK_THAT(std::string(batch.status().message()), Contains("row 9 (file40.jpg)"));
  door.open();
}

TEST_CASE("A loader with a stuck worker can seek", "[data][prefetcher]") {
  const int workers = GENERATE(1, 2);
  const bool persistent = GENERATE(true, false);
  const Door door;
  auto loader =
      sequential(stuck_at(100, 15, door),
                 {.batch_size = 10, .num_workers = workers, .persistent_workers = persistent, .timeout = 100ms});
  loader->next().value();
  REQUIRE_FALSE(loader->next().ok());
  loader->seek(0, 2);
  CHECK(drain(*loader) == range(20, 100));
  CHECK(door.waiting() >= 1);  // still waiting; a new worker may already wait for the next epoch
  door.open();
  door.await(0);
}

TEST_CASE("A loader can be destroyed while all its workers are stuck, and their data stays alive",
          "[data][prefetcher]") {
  const int workers = GENERATE(1, 3);
  const Door door;
  std::weak_ptr<const Dataset> dataset;
  {
    auto stuck = hooked(100, [door](const RowKey&) { door.wait(); });
    dataset = stuck;
    auto loader = sequential(std::move(stuck), {.batch_size = 10, .num_workers = workers, .timeout = 20ms});
    REQUIRE_FALSE(loader->next().ok());
    door.await(workers);
  }
  // The destructor returned although no read did.
  CHECK(door.waiting() == workers);
  CHECK_FALSE(dataset.expired());
  door.open();
  for (int i = 0; i < 1000 && !dataset.expired(); ++i) std::this_thread::sleep_for(10ms);
  CHECK(dataset.expired());  // the last worker frees it
}

TEST_CASE("A loader may be abandoned or destroyed at any moment", "[data][prefetcher]") {
  const int rounds = is_full() ? 20'000 : 150;
  RandomStream random(hash_key(2026, rounds));
  auto quick = hooked(500, [](const RowKey&) {});
  auto slow = hooked(500, [](const RowKey& key) {
    if (key.index % 7 == 0) std::this_thread::sleep_for(50us);
  });
  for (int round = 0; round < rounds; ++round) {
    auto loader = sequential(random.below(2) ? quick : slow, {.batch_size = static_cast<int64_t>(1 + random.below(60)),
                                                              .num_workers = static_cast<int>(random.below(5)),
                                                              .prefetch_factor = static_cast<int>(1 + random.below(10)),
                                                              .persistent_workers = random.below(2) == 0});
    for (uint64_t visits = random.below(4); visits > 0; --visits) {
      const auto batch_number = static_cast<int64_t>(random.below(loader->batches_per_epoch()));
      const auto epoch = static_cast<int64_t>(random.below(3));
      loader->seek(epoch, batch_number);
      int64_t expected = batch_number * loader->options().batch_size;
      for (uint64_t batches = random.below(12); batches > 0; --batches) {
        auto batch = loader->next().value();
        if (!batch) {
          REQUIRE(expected >= 500);
          expected = 0;
          continue;
        }
        for (const int64_t row : labels(*batch)) REQUIRE(row == expected++);
      }
    }
    if (random.below(3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.below(300)));
  }
}

// Resident memory of this process in KB, after malloc has released its free memory.
int64_t resident_kilobytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") break;
  }
  int64_t kilobytes = 0;
  status >> kilobytes;
  return kilobytes;
}

TEST_CASE("Memory and threads stay constant in a long run", "[data][prefetcher]") {
  const bool persistent = GENERATE(true, false);
  const int64_t batches = is_full() ? 100'000 : 3'000;
  auto dataset = std::make_shared<TensorDataset>(TensorDataset({{"x", torch::rand({1000, 256})}}));
  auto loader = sequential(dataset, {.batch_size = 50, .num_workers = 4, .persistent_workers = persistent});
  const auto read = [&](int64_t count) {
    while (count > 0) count -= loader->next().value().has_value();
  };
  read(500);
  const int64_t threads = thread_count(), memory = resident_kilobytes();
  read(batches);
  CHECK(thread_count() == threads);
  // A slot of the ring allocates its memory on first use, which may be late on a busy machine.
  const auto& options = loader->options();
  if (persistent) CHECK(loader->stats().allocations <= options.num_workers * options.prefetch_factor);
#ifndef __SANITIZE_ADDRESS__  // which delays freeing memory
  CHECK(resident_kilobytes() - memory < 4096);
#else
  (void)memory;
#endif
}

TEST_CASE("A batch outlives its loader", "[data][prefetcher]") {
  const int workers = GENERATE(0, 2);
  std::optional<Batch> batch;
  {
    auto loader = sequential(hooked(100, [](const RowKey&) {}), {.batch_size = 10, .num_workers = workers});
    loader->next().value();
    batch = loader->next().value();
  }
  CHECK(labels(*batch) == range(10, 20));
}

TEST_CASE("A kept batch can be moved to another thread while the loader continues", "[data][prefetcher]") {
  auto loader =
      sequential(hooked(2000, [](const RowKey&) {}), {.batch_size = 20, .num_workers = 2, .persistent_workers = true});
  std::vector<std::thread> readers;
  std::atomic<int64_t> sum{0};
  while (auto batch = loader->next().value()) {
    if (batch->row_indices()[0] % 100 != 0) continue;
    readers.emplace_back([kept = std::move(*batch), &sum] {
      for (const int64_t row : labels(kept)) sum += row;
    });
  }
  for (auto& reader : readers) reader.join();
  int64_t expected = 0;
  for (int64_t row = 0; row < 2000; ++row) expected += row % 100 < 20 ? row : 0;
  CHECK(sum == expected);
}

}  // namespace
}  // namespace trainkit
