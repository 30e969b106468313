#pragma once
/// Training on a scene of random numbers, whose speed is measured.

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hsi_classification/feed.h"
#include "hsi_classification/models.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Default: a scene with the size and the number of labelled pixels of Indian Pines.
struct RandomScene {
  HsiModelOptions model = {.model = "cnn2d", .bands = 200, .patch_size = 9, .num_classes = 16};
  int64_t height = 145, width = 145;
  /// Rows per epoch.
  int64_t epoch_rows = 10'249;
  bool augment = true;
  FeedKind feed = FeedKind::kDevice;
};

/// Returns the training on such a scene, with AdamW, for devices that are measured with measure_speed().
TrainingTask make_bench(const RandomScene& scene, const std::vector<at::Device>& devices);

/// Interprets three rates of quick_perf_test in patches per second: loader alone, step alone, both together; see
/// speed_verdict(). `feed` is that of both together.
std::string perf_verdict(double loader, double step, double both, int64_t num_workers, FeedKind feed);

/// One measured combination of sweep.
struct SweepPoint {
  FeedKind feed = FeedKind::kDevice;
  int64_t num_workers = 0, prefetch_factor = 2, batch_size = 32;
  double patches_per_second = 0;
};

/// Returns the recommended point: among those within 3 % of the fastest, the smallest batch, then the fewest workers,
/// then the smallest prefetch factor, then no loader. A pure function; needs at least one point.
SweepPoint recommended(const std::vector<SweepPoint>& points);

}  // namespace trainkit::hsi
