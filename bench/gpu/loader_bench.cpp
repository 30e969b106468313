// The loader that feeds a GPU: rows of 1 KB, batches of 1024 rows, page-locked and copied ahead. The floor copies one
// page-locked batch repeatedly. The peer is in peers/gpu_training.py.
#include <torch/torch.h>

#include "device_rate.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit::bench {
namespace {

constexpr int64_t kRows = 100'000, kWidth = 256, kBatch = 1024;
constexpr double kBatchBytes = kBatch * kWidth * sizeof(float);

void loader_case(benchmark::State& state, int workers) {
  const auto dataset = std::make_shared<TensorDataset>(
      std::vector<std::pair<std::string, at::Tensor>>{{"x", torch::rand({kRows, kWidth})}});
  const std::shared_ptr<Prefetcher> loader = Prefetcher::create(dataset, RandomSampler(kRows, {.seed = 7}),
                                                                {.batch_size = kBatch,
                                                                 .num_workers = workers,
                                                                 .prefetch_factor = 8,
                                                                 .persistent_workers = true,
                                                                 .drop_last = true,
                                                                 .pin_memory = true,
                                                                 .device = kGpu})
                                                 .value();
  const at::Tensor pinned = torch::rand({kBatch, kWidth}).pin_memory();
  run_rounds(state, {{"bytes",
                      [&](double duration) {
                        return device_rate(duration, [&] { return loader->next().value() ? kBatchBytes : 0; });
                      }},
                     {"copies", [&](double duration) {
                        return device_rate(duration, [&] {
                          benchmark::DoNotOptimize(pinned.to(kGpu, /*non_blocking=*/true));
                          return kBatchBytes;
                        });
                      }}});
}

}  // namespace

void add_loader_cases() {
  for (const int workers : {2, 4}) {
    add_case(
        "BM_GpuLoader/workers:" + std::to_string(workers),
        [workers](benchmark::State& state) { loader_case(state, workers); }, /*iterations=*/5);
  }
}

}  // namespace trainkit::bench
