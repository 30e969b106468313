#include "trainkit/logging/monitor.h"

#include <ctime>

#include "test_util.h"

using namespace trainkit;

namespace {

/// 100 batches in 10 seconds, of which the step waited `wait`; readers worked for `read` seconds together.
PrefetcherStats stats(double wait, double read) {
  PrefetcherStats stats;
  stats.batches = 100;
  stats.wait_seconds = 10 * wait;
  stats.consumer_seconds = 10 * (1 - wait);
  stats.read_seconds = read;
  return stats;
}

}  // namespace

TEST_CASE("The advice names the bottleneck and the setting to change", "[logging][monitor]") {
  struct Case {
    double wait, read;
    LoaderSettings settings;
    std::string advice;
  };
  const std::vector<Case> cases = {
      {0.04, 20, {.num_workers = 2, .cpus = 8}, ""},
      {0.43,
       19,
       {.num_workers = 2, .cpus = 8},
       "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4"},
      {0.43,
       19,
       {.num_workers = 2, .cpus = 8, .cpu_share = 0.9},
       "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4"},
      {0.10,
       10,
       {.num_workers = 1, .cpus = 2},
       "data wait 10%: the reader is always busy; raise --num_workers from 1 to 2"},
      {0.90,
       78,
       {.num_workers = 8, .cpus = 16},
       "data wait 90%: the 8 readers are always busy; raise --num_workers from 8 to 16"},
      {0.50,
       19,
       {.num_workers = 2, .cpus = 2},
       "data wait 50%: the 2 readers are always busy and every processor has one; make a row cheaper to read (store it "
       "decoded, cache it)"},
      {0.50,
       20,
       {.num_workers = 2, .cpus = 2, .cpu_share = 0.2},
       "data wait 50%: the 2 readers are waiting for storage while the processors idle; raise --num_workers from 2 to "
       "4, or move the data to a faster disk"},
      {0.20,
       8,
       {.num_workers = 4, .prefetch_factor = 2, .cpus = 8},
       "data wait 20%: the 4 readers are idle at times, the ring is too short for rows of uneven cost; raise "
       "--prefetch_factor from 2 to 4"},
      {0.60,
       6,
       {.num_workers = 0, .cpus = 8},
       "data wait 60%: the training thread reads the rows itself; set --num_workers to 2"},
      {1.00,
       10,
       {.num_workers = 0, .cpus = 4},
       "data wait 100%: the training thread reads the rows itself; set --num_workers to 4"},
  };
  for (const Case& c : cases) CHECK(loader_advice(stats(c.wait, c.read), c.settings) == c.advice);
}

TEST_CASE("A few batches are no reason for advice", "[logging][monitor]") {
  PrefetcherStats few = stats(0.9, 10);
  few.batches = 9;
  CHECK(loader_advice(few, {.num_workers = 1, .cpus = 4}).empty());
  CHECK(loader_advice({}, {}).empty());
}

TEST_CASE("The difference of two moments is what happened between them", "[logging][monitor]") {
  PrefetcherStats before = stats(0.9, 10), after = before;
  after.batches += 20;
  after.rows += 320;
  after.wait_seconds += 1;
  after.consumer_seconds += 3;
  after.read_seconds += 2;
  after.ready_batches += 40;
  const PrefetcherStats between = difference(after, before);
  CHECK(between.batches == 20);
  CHECK(between.rows == 320);
  CHECK(between.wait_fraction() == Approx(0.25));
  CHECK(between.read_seconds == Approx(2));
  CHECK(between.ready_batches == 40);
  CHECK(between.allocations == 0);
}

TEST_CASE("Memory and processor time of this process are measured", "[logging][monitor]") {
  ResourceMonitor monitor("libdoes-not-exist.so");
  const int64_t before = monitor.resident_bytes();
  CHECK(before > (4 << 20));
  std::vector<char> block(64 << 20, 1);
  CHECK(monitor.resident_bytes() - before > (60 << 20));
  while (std::clock() < CLOCKS_PER_SEC / 20) block[static_cast<size_t>(std::clock()) % block.size()] = 1;
  const double share = monitor.cpu_share();
  CHECK(share > 0);
  CHECK(share <= 1);
  CHECK(monitor.gpus().empty());
  const auto values = monitor.sample();
  REQUIRE(values.size() == 2);
  CHECK(values[0].first == "host_memory_bytes");
  CHECK(values[1].first == "cpu_share");
  CHECK(block.back() == 1);
}

TEST_CASE("GPUs are read through the driver's library, without those that it refuses", "[logging][monitor]") {
  ResourceMonitor monitor(FAKE_NVML);
  const std::vector<GpuUsage> gpus = monitor.gpus();
  REQUIRE(gpus.size() == 1);
  CHECK(gpus[0].name == "Pretend 9000");
  CHECK(gpus[0].total_bytes == int64_t{24} << 30);
  CHECK(gpus[0].used_bytes == int64_t{3} << 30);
  CHECK(gpus[0].utilization == Approx(0.87));
  const auto values = monitor.sample();
  REQUIRE(values.size() == 4);
  CHECK(values[2] == std::pair<std::string, double>("gpu_utilization/0", 0.87));
  CHECK(values[3] == std::pair<std::string, double>("gpu_used_bytes/0", 3.0 * (1 << 30)));
}

TEST_CASE("A library of that name that is not NVML is no GPU", "[logging][monitor]") {
  CHECK(ResourceMonitor("libm.so.6").gpus().empty());
}

TEST_CASE("processes that hold memory of a GPU are named where they can be seen") {
  const std::vector<GpuProcess> processes = ResourceMonitor(FAKE_NVML).gpu_processes();
  REQUIRE(processes.size() == 2);
  CHECK(processes[0].gpu == 1);
  CHECK(processes[0].pid == 1);
  CHECK_FALSE(processes[0].name.empty());
  CHECK(processes[0].used_bytes == int64_t{2} << 30);
  CHECK(processes[1].name.empty());
  CHECK(processes[1].used_bytes == -1);
  CHECK(ResourceMonitor("no-such-library.so").gpu_processes().empty());
}
