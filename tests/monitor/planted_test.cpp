// Artificial bottlenecks in a real loader with a real clock must be reported. The test checks no durations; other work
// on the machine makes the bottleneck stronger or leaves it unchanged.
#include <ctime>
#include <thread>

#include "logging/environment_variable.h"
#include "monitor/monitor_series.h"
#include "monitor/planted_run.h"
#include "test_util.h"

namespace trainkit {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using test::first_row;
using test::HookedDataset;
using test::swinging_run;

void sleep_for(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

/// Keeps a CPU core busy for `ms` of CPU time.
void work_for(double ms) {
  const auto spent = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  for (const double start = spent(); spent() - start < ms;) {
  }
}

/// The report of a run with `steps` steps of duration `step`.
MonitorReport watch(HookedDataset::Hook read, PrefetcherOptions options, int64_t steps,
                    const std::function<void()>& step, MonitorOptions monitoring = {}, MonitorSources sources = {}) {
  auto loader = Prefetcher::create(test::hooked(steps * options.batch_size, std::move(read)),
                                   SequentialSampler(steps * options.batch_size), options)
                    .value();
  if (monitoring.cpus == 0) monitoring.cpus = 8;
  Monitor monitor(*loader, std::move(sources), monitoring);
  bool first = true;
  while (auto batch = loader->next().value()) {
    if (std::exchange(first, false)) monitor.begin();
    step();
  }
  return monitor.stop();
}

TEST_CASE("A slow disk is reported", "[logging][planted]") {
  const auto report =
      watch([](const RowKey&) { sleep_for(3); }, {.batch_size = 4, .num_workers = 2}, 60, [] { sleep_for(1); });
  INFO(describe(report));
  CHECK(first_row(report) == "slow_storage --num_workers");
}

TEST_CASE("A slow decoder is reported", "[logging][planted]") {
  const auto report = watch([](const RowKey&) { work_for(2); }, {.batch_size = 4, .num_workers = 2}, 60,
                            [] { sleep_for(1); }, {.cpus = 2});
  INFO(describe(report));
  CHECK(first_row(report) == "slow_decode ");
}

TEST_CASE("A lack of workers is reported", "[logging][planted]") {
  const auto report =
      watch([](const RowKey&) { work_for(2); }, {.batch_size = 4, .num_workers = 1}, 60, [] { sleep_for(5); });
  INFO(describe(report));
  CHECK(first_row(report) == "too_few_workers --num_workers");
}

TEST_CASE("A training thread that reads the rows itself is reported", "[logging][planted]") {
  const auto report =
      watch([](const RowKey&) { sleep_for(1); }, {.batch_size = 4, .num_workers = 0}, 30, [] { sleep_for(1); });
  INFO(describe(report));
  CHECK(first_row(report) == "no_workers --num_workers");
}

TEST_CASE("A ring too short for rows of uneven cost is reported", "[logging][planted]") {
  const auto every_eighth = [](const RowKey& key) {
    if (key.index % 32 == 0) sleep_for(60);
  };
  const auto report =
      watch(every_eighth, {.batch_size = 4, .num_workers = 2, .prefetch_factor = 1}, 80, [] { sleep_for(2); });
  INFO(describe(report));
  CHECK(first_row(report) == "short_ring --prefetch_factor");
}

TEST_CASE("A wait close to the timeout is reported", "[logging][planted]") {
  const auto one_slow_row = [](const RowKey& key) {
    if (key.index == 20) sleep_for(2500);
  };
  const auto report =
      watch(one_slow_row, {.batch_size = 1, .num_workers = 1, .timeout = milliseconds(4000)}, 40, [] { sleep_for(1); });
  INFO(describe(report));
  CHECK(first_row(report) == "timeout --timeout");
}

TEST_CASE("A fast loader gets no advice", "[logging][planted]") {
  const auto report = watch([](const RowKey&) {}, {.batch_size = 4, .num_workers = 2, .timeout = milliseconds(60000)},
                            100, [] { sleep_for(10); });
  INFO(describe(report));
  CHECK(first_row(report).empty());
  CHECK(report.utilisation > 0.9);
  CHECK(report.queue_depth > 1);
}

TEST_CASE("A swing of nine windows in a real run is found and reported", "[logging][planted]") {
  // Other work on the machine may hide one swing, but not many in a row.
  MonitorReport report;
  for (int attempt = 0; attempt < 10 && first_row(report) != "swing --num_workers"; ++attempt) {
    report = swinging_run(milliseconds(50), 6);
  }
  INFO(describe(report));
  REQUIRE(report.swing);
  CHECK(report.swing->period == Approx(0.45).epsilon(0.2));
  CHECK(report.swing->min < 0.3);
  CHECK(report.swing->max > 0.7);
  CHECK(first_row(report) == "swing --num_workers");
}

TEST_CASE("The values of the GPUs' driver are sampled during the run", "[logging][planted]") {
  const MonitorOptions monitoring{.window = milliseconds(40), .nvml = FAKE_NVML, .cuda = FAKE_NVML};
  const PrefetcherOptions options{.batch_size = 4, .num_workers = 2};
  const auto run = [&](bool pinned) {
    PrefetcherOptions loader = options;
    loader.pin_memory = pinned;
    return watch([](const RowKey&) {}, loader, 50, [] { sleep_for(5); }, monitoring, {.cuda_devices = {0}});
  };
  SECTION("a busy GPU gets no advice") {
    const auto report = run(true);
    CHECK(report.of_gpus);
    CHECK(report.utilisation == Approx(0.87));
    CHECK(report.gpu_used_bytes == int64_t{3} << 30);
    CHECK(first_row(report).empty());
  }
  SECTION("a GPU that idles although data is ready has too small a batch") {
    const test::EnvironmentVariable idle("FAKE_NVML_UTILISATION", "35");
    CHECK(first_row(run(true)) == "small_batch --batch_size");
  }
  SECTION("a GPU that idles with copies from pageable memory needs page-locked memory") {
    const test::EnvironmentVariable idle("FAKE_NVML_UTILISATION", "35");
    CHECK(first_row(run(false)) == "pinned_memory --pin_memory");
  }
  SECTION("a GPU with nearly full memory needs a smaller batch") {
    const test::EnvironmentVariable full("FAKE_NVML_FREE_MIB", "500");
    CHECK(first_row(run(true)) == "memory --batch_size");
  }
  SECTION("a GPU slice without utilisation is judged by the waiting time") {
    const test::EnvironmentVariable slice("FAKE_NVML_UTILISATION", "none");
    const auto report = run(true);
    CHECK_FALSE(report.of_gpus);
    CHECK(first_row(report).empty());
  }
}

TEST_CASE("A Monitor stops immediately, however long its window is", "[logging][monitor]") {
  auto loader =
      Prefetcher::create(test::hooked(4, [](const RowKey&) {}), SequentialSampler(4), {.batch_size = 1}).value();
  const auto begin = Clock::now();
  {
    Monitor monitor(*loader, {}, {.window = std::chrono::hours(1)});
    CHECK(monitor.stop().seconds == 0);
  }
  CHECK(Clock::now() - begin < std::chrono::minutes(5));
}

TEST_CASE("The live table has a heading and one row per few windows", "[logging][monitor]") {
  auto loader = Prefetcher::create(test::hooked(1 << 20, [](const RowKey&) {}), SequentialSampler(1 << 20),
                                   {.batch_size = 1, .num_workers = 1})
                    .value();
  Monitor monitor(*loader, {}, {.window = milliseconds(10), .table_every = 2});
  std::vector<std::string> rows;
  for (int i = 0; i < 20'000 && rows.size() < 4; ++i) {
    REQUIRE(loader->next().value());
    sleep_for(1);
    for (std::string& row : monitor.take_rows()) rows.push_back(std::move(row));
  }
  REQUIRE(rows.size() >= 4);
  CHECK(rows[0] == MonitorSeries::table_heading());
  for (size_t i = 1; i < 4; ++i) CHECK(rows[i].starts_with("monitor    0:00"));
}

}  // namespace
}  // namespace trainkit
