#pragma once
/// Runs with an artificial bottleneck, and the Monitor's reports on them.

#include <chrono>
#include <string>
#include <thread>

#include "data/test_datasets.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit::test {

/// "slow_storage --num_workers" for the first advice; empty if there is none.
inline std::string first_row(const MonitorReport& report) {
  if (report.advice.empty()) return "";
  return std::string(to_string(report.advice[0].row)) + " " + report.advice[0].flag;
}

/// Readers block during the first half of every nine windows; the queue lasts for less than that.
inline MonitorReport swinging_run(std::chrono::milliseconds window, int periods) {
  const auto period = 9 * window, start_of_calm = period / 2;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto stall = [=](const RowKey&) {
    const auto phase = (Clock::now() - begin) % Clock::duration(period);
    if (phase < start_of_calm) std::this_thread::sleep_for(start_of_calm - phase);
  };
  auto loader =
      Prefetcher::create(hooked(1 << 30, stall), SequentialSampler(1 << 30), {.batch_size = 1, .num_workers = 2})
          .value();
  Monitor monitor(*loader, {}, {.window = window, .cpus = 8});
  while (Clock::now() - begin < periods * period) {
    if (!loader->next().value()) break;
    std::this_thread::sleep_for(window / 50);
  }
  return monitor.stop();
}

}  // namespace trainkit::test
