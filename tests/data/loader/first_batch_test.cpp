/// The first batch of a queue, which all workers read together.

#include <array>
#include <thread>

#include "data/test_datasets.h"
#include "test_util.h"
#include "trainkit/data/prefetcher.h"

namespace trainkit {
namespace {

using namespace test;
using namespace std::chrono_literals;
using Catch::Contains;

TEST_CASE("All workers read the first batch together, after a start and after a seek", "[data][prefetcher]") {
  // Reads of its rows wait at the epoch's gate, which opens when four readers wait.
  const std::array<Door, 2> doors;
  auto loader = sequential(hooked(800,
                                  [&](const RowKey& key) {
                                    if (key.index < 100 && key.epoch % 5 == 0) doors.at(key.epoch / 5).wait();
                                  }),
                           {.batch_size = 100, .num_workers = 4, .persistent_workers = true});
  for (const int64_t epoch : {0, 5}) {
    if (epoch > 0) loader->seek(epoch, 0);
    std::thread opener([&] {
      doors.at(epoch / 5).await(4);
      doors.at(epoch / 5).open();
    });
    CHECK(drain(*loader) == range(0, 800));
    opener.join();
  }
}

TEST_CASE("The timeout names the worker that is stuck in a part of the first batch", "[data][prefetcher]") {
  const int workers = GENERATE(2, 7);
  const Door door;
  auto loader = sequential(hooked(400,
                                  [=](const RowKey& key) {
                                    if (key.index == 97) door.wait();
                                  }),
                           {.batch_size = 100, .num_workers = workers, .timeout = 200ms});
  const auto batch = loader->next();
  REQUIRE_FALSE(batch.ok());
  CHECK_THAT(std::string(batch.status().message()), Contains("stuck at row 97 (file97.jpg)"));
  door.open();
}

TEST_CASE("An unreadable row of the first batch is handled like any other", "[data][prefetcher]") {
  const auto is_bad = [](int64_t index) { return index % 7 == 3; };
  std::vector<int64_t> good;
  for (int64_t row = 0; row < 100; ++row) {
    if (!is_bad(row)) good.push_back(row);
  }
  const int workers = GENERATE(0, 1, 2, 7);
  auto loader = sequential(hooked(100,
                                  [&](const RowKey& key) {
                                    if (is_bad(key.index)) throw std::runtime_error("torn");
                                  }),
                           {.batch_size = 100, .num_workers = workers, .on_error = OnError::kSkip});
  CHECK(labels(*loader->next().value()) == good);
  CHECK(loader->bad_samples().size() == 14);
}

}  // namespace
}  // namespace trainkit
