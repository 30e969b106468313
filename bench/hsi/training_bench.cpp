// Training steps of the hyperspectral trainer's networks as in a run (loader, gather, loss, backward, clipping, AdamW),
// two threads: patches of 11 x 11 x 200, batches of 256 (2-D) and 64 (3-D); HybridSN and SSRN with the patches of their
// papers. The peer, peers/hsi_step.py, trains the same networks in Python.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "hsi_classification/perf.h"
#include "networks.h"
#include "rounds.h"
#include "trainkit/app/benchmark.h"

namespace trainkit {

using namespace trainkit::hsi;
namespace {

void train(benchmark::State& state, const char* network, FeedKind feed, Precision precision = Precision::kFp32) {
  at::set_num_threads(2);
  const bench::HsiTask task = bench::hsi_task(network);
  RandomScene scene;
  scene.model = task.model;
  scene.epoch_rows = task.rows;
  scene.augment = false;
  scene.feed = feed;
  RunOptions run;
  run.precision = precision;
  run.num_workers = {1};
  run.prefetch_factor = {2};
  run.batch_size = {task.batch_size};
  const Placement placement{.batch = {.batch_size = task.batch_size}};
  double rate = 0;
  for (auto _ : state) {
    const Speed result = measure_speed(make_bench(scene, placement.devices), Measured::kBoth, run, MachineInfo::here(),
                                       placement, bench::quick() ? 0.05 : 4)
                             .value();
    rate = result.rows_per_second;
    state.SetIterationTime(result.epoch_seconds);
  }
  state.counters["patches"] = rate;
}

void BM_HsiCnn2d(benchmark::State& state) {
  train(state, "cnn2d", state.range(0) != 0 ? FeedKind::kLoader : FeedKind::kDevice);
}
BENCHMARK(BM_HsiCnn2d)->ArgName("loader")->Arg(0)->Arg(1)->UseManualTime()->Iterations(1);

void BM_HsiCnn2dBf16(benchmark::State& state) { train(state, "cnn2d", FeedKind::kDevice, Precision::kBf16); }
BENCHMARK(BM_HsiCnn2dBf16)->UseManualTime()->Iterations(1);

void BM_HsiCnn3d(benchmark::State& state) { train(state, "cnn3d", FeedKind::kDevice); }
BENCHMARK(BM_HsiCnn3d)->UseManualTime()->Iterations(1);

void BM_HsiHybridSn(benchmark::State& state) { train(state, "hybridsn", FeedKind::kDevice); }
BENCHMARK(BM_HsiHybridSn)->UseManualTime()->Iterations(1);

void BM_HsiSsrn(benchmark::State& state) { train(state, "ssrn", FeedKind::kDevice); }
BENCHMARK(BM_HsiSsrn)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace trainkit
