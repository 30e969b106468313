// The cost of logging for the step and for the writer thread.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "trainkit/logging/logger.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

namespace {

/// A record as the Trainer creates it.
LogRecord record() {
  return {
      .step = 10,
      .epoch = 0.125,
      .values = {{"loss", 2.3125}, {"grad_norm", 0.71}, {"samples_per_second", 81234.5}, {"data_wait_fraction", 0.02}},
      .lr = {1e-3},
      .gpu_memory_bytes = {int64_t{1} << 30}};
}

class NullLogger final : public Logger {
 public:
  void log(const LogRecord& record) override { benchmark::DoNotOptimize(record.step); }
  absl::Status flush() override { return absl::OkStatus(); }
};

/// A temporary folder of this process, removed at exit.
class Folder {
 public:
  Folder() : path_((std::filesystem::temp_directory_path() / "trainkit-bench-XXXXXX").string()) {
    if (!mkdtemp(path_.data())) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The floor: copying the record into allocated memory.
void BM_CopyRecord(benchmark::State& state) {
  LogRecord source = record(), target;
  for (auto _ : state) {
    ++source.step;
    target = source;
    benchmark::DoNotOptimize(target);
  }
}
BENCHMARK(BM_CopyRecord);

/// The cost of a record for the step. The queue never fills: it is flushed outside the measured time.
void BM_RunLoggerLog(benchmark::State& state) {
  constexpr int kBurst = 1024;
  RunLogger logger({.queue_capacity = 4 * kBurst, .drain_every = std::chrono::hours(1)});
  logger.add(std::make_unique<NullLogger>());
  LogRecord source = record();
  for (int warm = 0; warm < 4 * kBurst - 1; ++warm) logger.log(source);
  logger.flush().IgnoreError();
  int in_queue = 0;
  for (auto _ : state) {
    ++source.step;
    logger.log(source);
    if (++in_queue == kBurst) {
      state.PauseTiming();
      logger.flush().IgnoreError();
      in_queue = 0;
      state.ResumeTiming();
    }
  }
  if (logger.dropped() > 0) state.SkipWithError("records were dropped");
}
BENCHMARK(BM_RunLoggerLog);

/// The cost for the step between records.
void BM_RunLoggerTick(benchmark::State& state) {
  RunLogger logger({.drain_every = std::chrono::hours(1)});
  int64_t step = 0;
  for (auto _ : state) logger.tick(++step);
}
BENCHMARK(BM_RunLoggerTick);

/// The cost for the writer thread, including a write to the page cache.
void BM_JsonlLog(benchmark::State& state) {
  const Folder folder;
  const auto logger = JsonlLogger::open(folder.path() + "/metrics.jsonl").value();
  LogRecord source = record();
  for (auto _ : state) {
    ++source.step;
    logger->log(source);
  }
}
BENCHMARK(BM_JsonlLog);

void BM_TensorBoardLog(benchmark::State& state) {
  const Folder folder;
  const auto logger = TensorBoardLogger::open(folder.path()).value();
  LogRecord source = record();
  for (auto _ : state) {
    ++source.step;
    logger->log(source);
  }
}
BENCHMARK(BM_TensorBoardLog);

}  // namespace
