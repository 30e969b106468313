// The Monitor's sums and windows with a simulated clock. With the real clock: planted_test.cpp.
#include "trainkit/monitor/monitor.h"

#include <cmath>

#include "monitor/monitor_series.h"
#include "test_util.h"

namespace trainkit {
namespace {

/// A run that is observed four times per second; the test sets the share of waiting until the next observation.
struct PretendedRun {
  explicit PretendedRun(LoaderSettings settings = {.num_workers = 2, .cpus = 8}) : series(settings, 1.0) {
    series.add(now);  // before the first batch
    now.seconds = 5;  // which is slow
    now.loader.wait_seconds = 5;
    now.loader.batches = 1;
    series.add(now);
  }
  bool pass(double seconds, double waiting) {
    now.seconds += seconds;
    now.loader.wait_seconds += seconds * waiting;
    now.loader.batches += 10;
    now.loader.ready_batches += 30;
    now.loader.read_seconds += seconds * waiting;
    return series.add(now);
  }

  MonitorSeries series;
  MonitorSample now;
};

TEST_CASE("A nine-second swing is found and reported", "[logging][monitor]") {
  PretendedRun run;
  for (int i = 0; i < 4 * 90; ++i) run.pass(0.25, std::fmod(i * 0.25, 9.0) < 4.5 ? 0.91 : 0.09);
  const MonitorReport report = run.series.report();
  REQUIRE(report.swing);
  CHECK(report.swing->period == Approx(9).margin(0.3));
  CHECK(report.swing->min == Approx(0.09).margin(0.01));
  CHECK(report.swing->max == Approx(0.91).margin(0.01));
  REQUIRE(report.advice.size() == 1);
  CHECK(report.advice[0].row == Bottleneck::kSwing);
  CHECK(report.advice[0].flag == "--num_workers");
  INFO(describe(report));
  CHECK(describe(report).starts_with("utilisation 50% (9 to 91% every 9.0 s); step: wait 50%, copy 0%, compute 50%"));
}

TEST_CASE("A steady run has no swing and no advice", "[logging][monitor]") {
  PretendedRun run;
  for (int i = 0; i < 4 * 90; ++i) run.pass(0.25, 0.02);
  const MonitorReport report = run.series.report();
  CHECK_FALSE(report.swing);
  CHECK(report.advice.empty());
  CHECK(report.utilisation == Approx(0.98));
  CHECK(report.queue_depth == Approx(3));
  CHECK(describe(report) == "utilisation 98%; step: wait 2%, copy 0%, compute 98%, reduce 0%; queue 3.0 of 4");
}

TEST_CASE("The wait for the first batch is part of the start, not of the run", "[logging][monitor]") {
  PretendedRun run;
  CHECK(run.series.report().seconds == 0);
  CHECK(describe(run.series.report()) == "the run was too short to measure");
  run.pass(0.25, 0);
  const MonitorReport report = run.series.report();
  CHECK(report.seconds == Approx(0.25));
  CHECK(report.utilisation == 1);
  CHECK(run.series.windows().empty());
}

TEST_CASE("A window ends after a second, and a late observation also covers the missed ones", "[logging][monitor]") {
  PretendedRun run;
  CHECK_FALSE(run.pass(0.25, 1));
  CHECK_FALSE(run.pass(0.25, 1));
  CHECK_FALSE(run.pass(0.25, 0));
  CHECK(run.pass(0.25, 0));
  CHECK(run.pass(3.1, 1));
  const std::vector<double>& windows = run.series.windows();
  REQUIRE(windows.size() == 4);
  CHECK(windows[0] == Approx(0.5));
  for (size_t i = 1; i < 4; ++i) CHECK(windows[i] == Approx(0).margin(1e-12));
}

TEST_CASE("An evaluation is neither waiting nor training", "[logging][monitor]") {
  PretendedRun run;
  for (int i = 0; i < 4; ++i) run.pass(0.25, 0.5);
  run.series.pause(run.now.seconds);
  CHECK_FALSE(run.pass(100, 0));
  run.series.resume(run.now.seconds);
  for (int i = 0; i < 4; ++i) run.pass(0.25, 0.5);
  const MonitorReport report = run.series.report();
  CHECK(report.seconds == Approx(2));
  CHECK(report.utilisation == Approx(0.5));
  CHECK(run.series.windows().size() == 2);
  CHECK(run.series.training_time(200) == Approx(100));
}

TEST_CASE("Utilisation is that of the GPUs if their driver reports it", "[logging][monitor]") {
  PretendedRun run;
  for (int i = 0; i < 8; ++i) {
    run.now.gpus = {{.used_bytes = 100 + i, .total_bytes = 1000, .utilization = i % 2 ? 0.2 : 0.4},
                    {.used_bytes = 50, .total_bytes = 1000, .utilization = 0.9}};
    run.pass(0.25, 0.5);
  }
  MonitorReport report = run.series.report();
  CHECK(report.of_gpus);
  CHECK(report.utilisation == Approx((0.3 + 0.9) / 2));
  CHECK(report.gpu_used_bytes == 107);
  CHECK(describe(report).starts_with("GPU utilisation 60%"));

  PretendedRun slice;
  slice.now.gpus = {{.total_bytes = 1000, .utilization = 0.5}, {.total_bytes = 1000, .utilization = -1}};
  for (int i = 0; i < 8; ++i) slice.pass(0.25, 0.5);
  report = slice.series.report();
  CHECK_FALSE(report.of_gpus);
  CHECK(report.utilisation == Approx(0.5));
}

TEST_CASE("Memory is the smallest free amount, counting LibTorch's cache as free", "[logging][monitor]") {
  PretendedRun run({.batch_size = 8, .num_workers = 2, .on_gpu = true, .pinned = true, .cpus = 8});
  run.now.gpus = {{.used_bytes = 990, .total_bytes = 1000, .utilization = 0.9}};
  run.now.allocators = {{.allocated_bytes = 300, .reserved_bytes = 900}};
  for (int i = 0; i < 4; ++i) run.pass(0.25, 0);
  CHECK(run.series.report().advice.empty());
  run.now.allocators = {{.allocated_bytes = 880, .reserved_bytes = 900}};
  run.pass(0.25, 0);
  run.now.allocators = {{.allocated_bytes = 300, .reserved_bytes = 900}};
  run.pass(0.25, 0);
  const MonitorReport report = run.series.report();
  REQUIRE(report.advice.size() == 1);
  CHECK(report.advice[0].row == Bottleneck::kMemory);
}

TEST_CASE("Each GPU has its own utilisation", "[logging][monitor]") {
  PretendedRun run;
  CHECK(run.series.of_each_gpu().empty());
  for (int i = 0; i < 5; ++i) {
    run.now.gpus = {{.total_bytes = 1000, .utilization = i % 2 ? 0.25 : 0.75}, {.total_bytes = 1000}};
    run.pass(0.25, 0);
  }
  REQUIRE(run.series.of_each_gpu().size() == 2);
  CHECK(run.series.of_each_gpu()[0] == Approx(0.5));
  CHECK(run.series.of_each_gpu()[1] == -1);
}

TEST_CASE("The columns of the live table are aligned with its heading", "[logging][monitor]") {
  PretendedRun run;
  for (int i = 0; i < 4; ++i) run.pass(0.25, 0.25);
  CHECK(run.series.table_row() == "monitor    0:01   75%   25%    0%      75%      0%   3/4        0 B");
  CHECK(MonitorSeries::table_heading().starts_with(
      "monitor    time  busy  wait  copy  compute  reduce  queue      host"));
}

}  // namespace
}  // namespace trainkit
