/// Patches of a hyperspectral scene (11 x 11 x 200 float32 of 145 x 145 pixels, 256 per batch), compared with the
/// machine's floor (a loop of streaming stores) and with LibTorch's own loader.

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cstring>
#include <memory>
#include <vector>

#include "rounds.h"
#include "trainkit/core/random.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/data/sampler.h"
#include "trainkit/imagery/patches.h"

namespace trainkit {
namespace patches {

using bench::Contestant;

constexpr int kThreads = 2;
constexpr int64_t kSide = 145, kPatch = 11, kBands = 200, kBatch = 256, kRing = 2;
constexpr int64_t kBorderedSide = kSide + kPatch - 1, kPatchFloats = kPatch * kPatch * kBands;

const at::Tensor& image() {
  static const at::Tensor instance = torch::rand({kBorderedSide, kBorderedSide, kBands});
  return instance;
}

std::shared_ptr<PatchDataset> patches() {
  const at::Tensor pixels = torch::arange(kSide * kSide, torch::kLong);
  return std::make_shared<PatchDataset>(image(), pixels, torch::zeros_like(pixels), PatchOptions{.patch_size = kPatch});
}

/// Rings of batches, one per thread, with slots aligned as those of a Prefetcher.
struct Rings {
  at::Tensor memory = torch::zeros({kThreads * kRing * kBatch, kPatchFloats});
  int64_t next[kThreads * 16] = {};
  float* slot(int thread) {
    return memory.data_ptr<float>() + (thread * kRing + next[thread * 16] % kRing) * kBatch * kPatchFloats;
  }
};

/// Copies a run of 32-byte blocks, as a row of a patch is.
using CopyRun = void (*)(float* to, const float* from, int64_t floats);

void copy_run(float* to, const float* from, int64_t floats) { std::memcpy(to, from, floats * sizeof(float)); }

#ifdef __SSE2__
__attribute__((target("avx"))) void stream_run(float* to, const float* from, int64_t floats) {
  for (int64_t i = 0; i < floats; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
}
#else
constexpr CopyRun stream_run = copy_run;
#endif

/// Only the copies: random centres, rows of patches into a ring.
Contestant floor_of(const std::string& name, CopyRun copy) {
  auto rings = std::make_shared<Rings>();
  return {name, [=](double duration) {
            return bench::threaded_rate(kThreads, duration, [&](int thread) {
              float* to = rings->slot(thread);
              RandomStream random(static_cast<uint64_t>(++rings->next[thread * 16] * kThreads + thread));
              for (int64_t n = 0; n < kBatch; ++n, to += kPatchFloats) {
                const auto y = static_cast<int64_t>(random.below(kSide)), x = static_cast<int64_t>(random.below(kSide));
                const float* from = image().const_data_ptr<float>() + (y * kBorderedSide + x) * kBands;
                for (int64_t row = 0; row < kPatch; ++row) {
                  copy(to + row * kPatch * kBands, from + row * kBorderedSide * kBands, kPatch * kBands);
                }
              }
              return kBatch;
            });
          }};
}

/// The dataset's own copy of random rows into the same rings.
Contestant gather(const std::string& name, bool augment) {
  auto rings = std::make_shared<Rings>();
  const at::Tensor pixels = torch::arange(kSide * kSide, torch::kLong);
  auto dataset = std::make_shared<PatchDataset>(image(), pixels, torch::zeros_like(pixels),
                                                PatchOptions{.patch_size = kPatch, .augment = augment});
  return {name, [=](double duration) {
            return bench::threaded_rate(kThreads, duration, [&](int thread) {
              float* const to = rings->slot(thread);
              RandomStream random(static_cast<uint64_t>(++rings->next[thread * 16] * kThreads + thread));
              RowKey keys[kBatch];
              for (RowKey& key : keys) key.index = static_cast<int64_t>(random.below(kSide * kSide));
              int64_t pixel[kBatch], label[kBatch];
              const BatchView::Field fields[] = {{reinterpret_cast<std::byte*>(to), kPatchFloats * 4},
                                                 {reinterpret_cast<std::byte*>(pixel), 8},
                                                 {reinterpret_cast<std::byte*>(label), 8}};
              dataset->get_batch(keys, BatchView(fields, kBatch));
              benchmark::DoNotOptimize(label);
              return kBatch;
            });
          }};
}

void BM_PatchGather(benchmark::State& state) {
  at::set_num_threads(1);
  bench::run_rounds(
      state, {gather("patches", state.range(0) != 0), floor_of("streaming", stream_run), floor_of("memcpy", copy_run)});
}
BENCHMARK(BM_PatchGather)->ArgName("augment")->Arg(0)->Arg(1)->UseManualTime()->Iterations(15);

// Idiomatic code for LibTorch's loader: views of the image, stacked.
struct TorchPatches : torch::data::datasets::Dataset<TorchPatches> {
  torch::data::Example<> get(size_t row) override {
    const auto y = static_cast<int64_t>(row) / kSide, x = static_cast<int64_t>(row) % kSide;
    return {image().narrow(0, y, kPatch).narrow(1, x, kPatch), torch::zeros({}, torch::kLong)};
  }
  std::optional<size_t> size() const override { return kSide * kSide; }
};

void BM_PatchLoader(benchmark::State& state) {
  at::set_num_threads(1);
  const auto drain = [](auto next) {
    return [next](double duration) { return bench::rate(duration, [&] { return next() ? kBatch : 0; }); };
  };
  std::shared_ptr<Prefetcher> ours = Prefetcher::create(patches(), RandomSampler(kSide * kSide, {.seed = 7}),
                                                        {.batch_size = kBatch,
                                                         .num_workers = kThreads,
                                                         .prefetch_factor = 2,
                                                         .persistent_workers = true,
                                                         .drop_last = true})
                                         .value();
  auto torch_loader = torch::data::make_data_loader(
      TorchPatches().map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(kBatch).workers(kThreads).drop_last(true));
  auto at = torch_loader->begin();
  const auto next_torch = [&] {
    benchmark::DoNotOptimize(at->data);
    if (++at == torch_loader->end()) at = torch_loader->begin();
    return true;
  };
  const auto next_ours = [ours] {
    auto batch = ours->next().value();
    benchmark::DoNotOptimize(batch);
    return batch.has_value();
  };
  bench::run_rounds(
      state, {{"patches", drain(next_ours)}, {"torch_data", drain(next_torch)}, floor_of("streaming", stream_run)},
      /*duration=*/0.3);
}
BENCHMARK(BM_PatchLoader)->UseManualTime()->Iterations(8);

}  // namespace patches
}  // namespace trainkit
