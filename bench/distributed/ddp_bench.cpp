// Steps with two and four ranks as processes, and with two replicas in threads of one process. The peer is PyTorch's
// DistributedDataParallel under torchrun (bench/peers/ddp_step.py): the same model, rows, optimizer and threads.
#include <benchmark/benchmark.h>

#include <sstream>

#include "ddp_step.h"
#include "ranks.h"
#include "test_util.h"

namespace trainkit::bench {
namespace {

/// One iteration is a whole job of `range(0)` ranks; its results are counters. `overlap` is the hidden share of the
/// communication: (compute + communication - step) / communication; `exposed_ms` is the time that reducing adds to a
/// step. If the ranks use all CPU cores, communication takes compute time and cannot be hidden.
void BM_DdpStep(benchmark::State& state) {
  for (auto _ : state) {
    const test::TempDir folder;
    test::Ranks job("ddp_rank", static_cast<int>(state.range(0)), {"100"}, folder.path().string());
    for (const int code : job.wait_all()) {
      if (code != 0) return state.SkipWithError("a rank failed");
    }
    std::map<std::string, double> seconds;
    std::istringstream lines(job.out(0));
    for (std::string name; lines >> name;) lines >> seconds[name];
    state.SetIterationTime(seconds["step"]);
    state.counters["steps"] = 1 / seconds["step"];
    state.counters["compute_ms"] = seconds["compute"] * 1e3;
    state.counters["communication_ms"] = seconds["communication"] * 1e3;
    state.counters["overlap"] =
        (seconds["compute"] + seconds["communication"] - seconds["step"]) / seconds["communication"];
    state.counters["exposed_ms"] = (seconds["step"] - seconds["compute"]) * 1e3;
    state.counters["agreement_us"] = seconds["agreement"] * 1e6;
  }
}
BENCHMARK(BM_DdpStep)->Arg(2)->Arg(4)->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);

/// The same rows with two replicas in one process, one thread each.
void BM_DataParallelStep(benchmark::State& state) {
  at::set_num_threads(2);  // one per replica
  torch::manual_seed(0);
  const auto devices = DeviceReplicator::create([] { return WideMlp(); }, {.cpu_replicas = 2}).value();
  AdamW optimizer({.lr = 1e-4});
  TrainStep train(*devices, optimizer);
  const Batch batch = wide_batch(2 * kRowsPerReplica);
  for (int i = 0; i < 10; ++i) train(batch, wide_loss);
  for (auto _ : state) train(batch, wide_loss);
  state.counters["steps"] = benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_DataParallelStep)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace trainkit::bench
