#include "hsi_classification/perf.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "trainkit/app/placement.h"
#include "trainkit/core/status.h"
#include "trainkit/logging/monitor.h"
#include "trainkit/nn/cross_entropy.h"
#include "trainkit/optim/adam.h"

namespace trainkit::hsi {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Objects of a run on a scene of random numbers.
struct Bench {
  std::shared_ptr<Feed> feed;
  std::unique_ptr<Prefetcher> loader;
  std::unique_ptr<DeviceReplicator> devices;
  LossFunction loss;
};

absl::StatusOr<Bench> make_bench(const PerfSettings& settings) {
  const HsiModelOptions& model = settings.model;
  const auto replicas = static_cast<int64_t>(settings.devices.size());
  const int64_t border = model.patch_size - 1;
  const int64_t pixels = settings.height * settings.width;
  Bench bench;
  bench.feed =
      std::make_shared<Feed>(settings.feed, at::rand({settings.height + border, settings.width + border, model.bands}),
                             model.patch_size, settings.devices);
  const at::Tensor rows = at::randperm(pixels, at::kLong).slice(0, 0, std::min(settings.epoch_rows, pixels));
  const auto dataset =
      bench.feed->dataset(rows, at::randint(model.num_classes, {rows.numel()}, at::kLong), settings.augment);

  const RunOptions run{.num_workers = {settings.num_workers},
                       .prefetch_factor = {settings.prefetch_factor},
                       .batch_size = {settings.batch_size}};
  const Placement placement{
      .plan = {.strategy = replicas > 1 ? "dp" : "single", .devices = settings.devices, .replicas = replicas},
      .batch = {.batch_size = settings.batch_size, .replicas = replicas}};
  const auto order = std::make_shared<RandomSampler>(rows.numel());
  TRAINKIT_ASSIGN_OR_RETURN(bench.loader, training_loader(dataset, order, run, Machine::here(), placement));
  TRAINKIT_ASSIGN_OR_RETURN(
      bench.devices, DeviceReplicator::create([&] { return create_model(model); }, replicator_options(run, placement)));
  bench.loss = make_loss_function([feed = bench.feed](HsiModel& net, const Batch& batch) {
    return cross_entropy(net.forward(feed->patches(batch)), batch["y"]);
  });
  return bench;
}

void wait_for(const std::vector<at::Device>& devices) {
  for (const at::Device device : devices) {
    if (!device.is_cpu()) at::accelerator::synchronizeDevice(std::max<c10::DeviceIndex>(device.index(), 0));
  }
}

/// Samples the GPUs' utilisation five times per second in a thread.
class GpuUtilisationSampler {
 public:
  /// @param gpus LibTorch's indices of the GPUs.
  explicit GpuUtilisationSampler(std::vector<int> gpus) : gpus_(std::move(gpus)), thread_([this] { watch(); }) {}
  ~GpuUtilisationSampler() {
    if (thread_.joinable()) stop();
  }
  GpuUtilisationSampler(const GpuUtilisationSampler&) = delete;
  GpuUtilisationSampler& operator=(const GpuUtilisationSampler&) = delete;

  /// Stops sampling. @return the mean utilisation, nullopt if the driver does not report it.
  std::optional<double> stop() {
    done_ = true;
    thread_.join();
    return samples_ > 0 ? std::optional(sum_ / samples_) : std::nullopt;
  }

 private:
  void watch() {
    ResourceMonitor monitor;
    while (!done_) {
      for (const GpuUsage& gpu : monitor.gpus_of(gpus_)) {
        if (gpu.utilization < 0) continue;
        sum_ += gpu.utilization;
        ++samples_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  }
  const std::vector<int> gpus_;
  std::atomic<bool> done_{false};
  double sum_ = 0, samples_ = 0;
  std::thread thread_;
};

/// Calls `piece`, which returns the number of rows processed, for settings.seconds after a warm-up of a tenth of that.
absl::StatusOr<PerfResult> time_pieces(const PerfSettings& settings, const Prefetcher* loader,
                                       const std::function<absl::StatusOr<int64_t>()>& piece) {
  const auto repeat = [&](double seconds, int64_t& rows) -> absl::Status {
    const auto start = Clock::now();
    do {
      TRAINKIT_ASSIGN_OR_RETURN(const int64_t done, piece());
      rows += done;
    } while (seconds_since(start) < seconds);
    wait_for(settings.devices);
    return absl::OkStatus();
  };
  int64_t rows = 0;
  TRAINKIT_RETURN_IF_ERROR(repeat(settings.seconds / 10, rows));
  rows = 0;
  const PrefetcherStats before = loader ? loader->stats() : PrefetcherStats{};
  std::optional<GpuUtilisationSampler> watch;
  std::vector<int> gpus;
  for (const at::Device device : settings.devices) {
    if (device.is_cuda()) gpus.push_back(std::max<int>(device.index(), 0));
  }
  if (!gpus.empty()) watch.emplace(gpus);
  const auto start = Clock::now();
  TRAINKIT_RETURN_IF_ERROR(repeat(settings.seconds, rows));
  PerfResult result;
  result.patches_per_second = static_cast<double>(rows) / seconds_since(start);
  result.epoch_seconds = static_cast<double>(settings.epoch_rows) / result.patches_per_second;
  if (loader) result.waiting_share = difference(loader->stats(), before).wait_fraction();
  const std::optional<double> reported = watch ? watch->stop() : std::nullopt;
  result.utilisation = reported.value_or(1 - result.waiting_share);
  return result;
}

absl::StatusOr<Batch> next_batch(Prefetcher& loader) {
  while (true) {
    TRAINKIT_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.next());
    if (batch) return *std::move(batch);  // continue after the end of an epoch
    if (loader.batches_per_epoch() == 0) return absl::InvalidArgumentError("an epoch has no full batch");
  }
}

}  // namespace

absl::StatusOr<PerfResult> measure_training(const PerfSettings& settings) {
  TRAINKIT_ASSIGN_OR_RETURN(const Bench bench, make_bench(settings));
  AdamW optimizer;
  TrainStep step(*bench.devices, optimizer, {.precision = settings.precision, .grad_clip = 1.0});
  return time_pieces(settings, bench.loader.get(), [&]() -> absl::StatusOr<int64_t> {
    TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
    step(batch, bench.loss);
    return batch.size();
  });
}

absl::StatusOr<PerfResult> measure_loader(const PerfSettings& settings) {
  TRAINKIT_ASSIGN_OR_RETURN(const Bench bench, make_bench(settings));
  return time_pieces(settings, bench.loader.get(), [&]() -> absl::StatusOr<int64_t> {
    TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
    return batch.size();
  });
}

absl::StatusOr<PerfResult> measure_step(const PerfSettings& settings) {
  TRAINKIT_ASSIGN_OR_RETURN(const Bench bench, make_bench(settings));
  AdamW optimizer;
  TrainStep step(*bench.devices, optimizer, {.precision = settings.precision, .grad_clip = 1.0});
  TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
  return time_pieces(settings, nullptr, [&]() -> absl::StatusOr<int64_t> {
    step(batch, bench.loss);
    return batch.size();
  });
}

}  // namespace trainkit::hsi
