#pragma once
/// How fast a model trains, and what holds it up: the parts of a run, timed on a scene of random numbers.

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/models.h"
#include "trainkit/train/train_step.h"

namespace trainkit::hsi {

/// What is timed: a scene of Indian Pines' size and its number of labelled pixels, unless another is asked for.
struct PerfSettings {
  HsiModelOptions model = {.model = "cnn2d", .bands = 200, .patch_size = 9, .num_classes = 16};
  int64_t height = 145, width = 145;
  /// Rows of an epoch.
  int64_t epoch_rows = 10'249;
  /// Rows per device and step.
  int64_t batch_size = 32;
  bool augment = true;
  /// The same CPU several times: logical replicas.
  std::vector<at::Device> devices = {at::kCPU};
  Precision precision = Precision::kFp32;
  FeedKind feed = FeedKind::kDevice;
  int64_t num_workers = 1;
  int64_t prefetch_factor = 2;
  /// Time to measure for, after a tenth of it to warm up.
  double seconds = 3;
};

struct PerfResult {
  double patches_per_second = 0;
  /// An epoch at that rate.
  double epoch_seconds = 0;
  /// Share of the time that the step waited for data.
  double waiting_share = 0;
  /// Share of the time that the devices were busy: NVML's with CUDA, else 1 - waiting_share.
  double utilisation = 0;
};

/// Training as a run does it: loader, replicas, loss, backward, clipping, AdamW.
absl::StatusOr<PerfResult> measure_training(const PerfSettings& settings);

/// The loader alone, drained as fast as it goes.
absl::StatusOr<PerfResult> measure_loader(const PerfSettings& settings);

/// The step alone, on one batch that is there already.
absl::StatusOr<PerfResult> measure_step(const PerfSettings& settings);

}  // namespace trainkit::hsi
