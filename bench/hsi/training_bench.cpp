// Training steps of the hyperspectral trainer's networks as in a run (loader, gather, loss, backward, clipping, AdamW),
// two threads: patches of 11 x 11 x 200, batches of 256 (2-D) and 64 (3-D); HybridSN and SSRN with the patches of their
// papers. The peer, peers/hsi_step.py, trains the same networks in Python.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "../rounds.h"
#include "core/waiting_threads.h"
#include "hsi_classification/perf.h"

namespace trainkit {

using namespace trainkit::hsi;
namespace {

void train(benchmark::State& state, const HsiModelOptions& model, int64_t rows, int64_t batch_size, FeedKind feed,
           Precision precision = Precision::kFp32) {
  at::set_num_threads(2);
  detail::let_waiting_threads_sleep();  // as every trainer does
  PerfSettings settings;
  settings.model = model;
  settings.epoch_rows = rows;
  settings.batch_size = batch_size;
  settings.augment = false;
  settings.feed = feed;
  settings.precision = precision;
  settings.num_workers = 1;
  settings.seconds = bench::quick() ? 0.05 : 4;
  double rate = 0;
  for (auto _ : state) {
    const PerfResult result = measure_training(settings).value();
    rate = result.patches_per_second;
    state.SetIterationTime(result.epoch_seconds);
  }
  state.counters["patches"] = rate;
}

HsiModelOptions network(const char* model, int64_t patch_size, int64_t bands) {
  return {.model = model, .bands = bands, .patch_size = patch_size, .num_classes = 16};
}

void BM_HsiCnn2d(benchmark::State& state) {
  train(state, network("cnn2d", 11, 200), 3072, 256, state.range(0) != 0 ? FeedKind::kLoader : FeedKind::kDevice);
}
BENCHMARK(BM_HsiCnn2d)->ArgName("loader")->Arg(0)->Arg(1)->UseManualTime()->Iterations(1);

void BM_HsiCnn2dBf16(benchmark::State& state) {
  train(state, network("cnn2d", 11, 200), 3072, 256, FeedKind::kDevice, Precision::kBf16);
}
BENCHMARK(BM_HsiCnn2dBf16)->UseManualTime()->Iterations(1);

void BM_HsiCnn3d(benchmark::State& state) { train(state, network("cnn3d", 11, 200), 512, 64, FeedKind::kDevice); }
BENCHMARK(BM_HsiCnn3d)->UseManualTime()->Iterations(1);

void BM_HsiHybridSn(benchmark::State& state) { train(state, network("hybridsn", 25, 30), 512, 64, FeedKind::kDevice); }
BENCHMARK(BM_HsiHybridSn)->UseManualTime()->Iterations(1);

void BM_HsiSsrn(benchmark::State& state) { train(state, network("ssrn", 7, 200), 512, 64, FeedKind::kDevice); }
BENCHMARK(BM_HsiSsrn)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace trainkit
