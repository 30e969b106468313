#include "hsi_classification/perf.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trainkit/app/placement.h"
#include "trainkit/core/status.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/nn/functional.h"
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
  const int64_t ranks = settings.group ? settings.group->world_size() : 1;
  const int64_t replicas = static_cast<int64_t>(settings.devices.size()) * ranks;
  const Placement placement{.devices = settings.devices,
                            .batch = {.batch_size = settings.batch_size, .replicas = replicas},
                            .group = settings.group};
  const auto order = std::make_shared<RandomSampler>(rows.numel());
  TRAINKIT_ASSIGN_OR_RETURN(bench.loader, training_loader(dataset, order, run, MachineInfo::here(), placement));
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

/// Rows of one call, and whether it was the last one.
struct Piece {
  int64_t rows = 0;
  bool is_last = false;
};

/// Returns a monitor whose windows are short enough to show a swing in settings.seconds.
Monitor watch(const PerfSettings& settings, const Prefetcher& loader) {
  MonitorSources sources;
  for (const at::Device device : settings.devices) {
    if (device.is_cuda()) sources.cuda_devices.push_back(std::max<int>(device.index(), 0));
  }
  const auto window = static_cast<int64_t>(1000 * settings.seconds / 60);
  return Monitor(loader, sources, {.window = std::chrono::milliseconds(std::clamp<int64_t>(window, 50, 1000))});
}

/// Calls `piece` for settings.seconds after a warm-up of a tenth of that. The argument is true once the time is up.
absl::StatusOr<PerfResult> time_pieces(const PerfSettings& settings, const Prefetcher& loader,
                                       const std::function<absl::StatusOr<Piece>(bool)>& piece) {
  const auto repeat = [&](double seconds, const std::function<void()>& on_first) -> absl::StatusOr<int64_t> {
    const auto start = Clock::now();
    int64_t rows = 0;
    for (Piece done; !done.is_last;) {
      TRAINKIT_ASSIGN_OR_RETURN(done, piece(seconds_since(start) >= seconds));
      if (rows == 0) on_first();
      rows += done.rows;
    }
    wait_for(settings.devices);
    return rows;
  };
  TRAINKIT_RETURN_IF_ERROR(repeat(settings.seconds / 10, [] {}).status());
  Monitor monitor = watch(settings, loader);
  const auto start = Clock::now();
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t rows, repeat(settings.seconds, [&] { monitor.begin(); }));
  const double seconds = seconds_since(start);
  const int64_t ranks = settings.group ? settings.group->world_size() : 1;
  const MonitorReport report = monitor.stop();
  PerfResult result{.patches_per_second = static_cast<double>(rows * ranks) / seconds,
                    .waiting_share = report.split.wait,
                    .utilisation = report.utilisation,
                    .swing = report.swing};
  result.epoch_seconds = static_cast<double>(settings.epoch_rows) / result.patches_per_second;
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
  return time_pieces(settings, *bench.loader, [&](bool is_late) -> absl::StatusOr<Piece> {
    TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
    if (is_late) step.request_stop(1);  // ranks end after the same step
    step(batch, bench.loss);
    return Piece{batch.size(), step.agreed_stop() != 0};
  });
}

absl::StatusOr<PerfResult> measure_loader(const PerfSettings& settings) {
  TRAINKIT_ASSIGN_OR_RETURN(const Bench bench, make_bench(settings));
  return time_pieces(settings, *bench.loader, [&](bool is_late) -> absl::StatusOr<Piece> {
    TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
    return Piece{batch.size(), is_late};
  });
}

absl::StatusOr<PerfResult> measure_step(const PerfSettings& settings) {
  TRAINKIT_ASSIGN_OR_RETURN(const Bench bench, make_bench(settings));
  AdamW optimizer;
  TrainStep step(*bench.devices, optimizer, {.precision = settings.precision, .grad_clip = 1.0});
  TRAINKIT_ASSIGN_OR_RETURN(const Batch batch, next_batch(*bench.loader));
  return time_pieces(settings, *bench.loader, [&](bool is_late) -> absl::StatusOr<Piece> {
    step(batch, bench.loss);
    return Piece{batch.size(), is_late};
  });
}

}  // namespace trainkit::hsi
