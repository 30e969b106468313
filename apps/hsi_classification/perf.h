#pragma once
/// Measures training speed and finds the bottleneck, on a scene of random numbers.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/models.h"
#include "trainkit/distributed/process_group.h"
#include "trainkit/monitor/monitor.h"
#include "trainkit/train/train_step.h"

namespace trainkit::hsi {

/// Settings of a measurement. Default: a scene with the size and the number of labelled pixels of Indian Pines.
struct PerfSettings {
  HsiModelOptions model = {.model = "cnn2d", .bands = 200, .patch_size = 9, .num_classes = 16};
  int64_t height = 145, width = 145;
  /// Rows per epoch.
  int64_t epoch_rows = 10'249;
  /// Rows per device and step.
  int64_t batch_size = 32;
  bool augment = true;
  /// Devices of this process. The CPU several times means logical replicas.
  std::vector<at::Device> devices = {at::kCPU};
  /// Ranks that train together; nullptr: this process alone. Every rank measures with the same settings.
  std::shared_ptr<ProcessGroup> group = nullptr;
  Precision precision = Precision::kFp32;
  FeedKind feed = FeedKind::kDevice;
  int64_t num_workers = 1;
  int64_t prefetch_factor = 2;
  /// Measurement time, after a warm-up of a tenth of it.
  double seconds = 3;
};

/// Rates are those of all ranks together; the other values those of this process.
struct PerfResult {
  double patches_per_second = 0;
  /// Duration of an epoch at that rate.
  double epoch_seconds = 0;
  /// Share of time in which the step waited for data.
  double waiting_share = 0;
  /// Share of time in which the devices were busy: from NVML with CUDA, else 1 - waiting_share. 1 for the step alone.
  double utilisation = 1;
  /// Periodic swing of the utilisation, if there is one; the period is in seconds and fits twice into the measurement.
  std::optional<Swing> swing = {};
};

/// Measures training as in a run: loader, replicas, loss, backward, clipping, AdamW.
absl::StatusOr<PerfResult> measure_training(const PerfSettings& settings);

/// Measures the loader alone, without a step.
absl::StatusOr<PerfResult> measure_loader(const PerfSettings& settings);

/// Measures the step alone, on one batch in memory.
absl::StatusOr<PerfResult> measure_step(const PerfSettings& settings);

}  // namespace trainkit::hsi
