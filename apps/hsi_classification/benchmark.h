#pragma once
/// Commands that measure speed instead of training: trainkit-hsi benchmark, sweep, quick_perf_test. They need no data.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hsi_classification/perf.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

/// Returns the commands. They print their results. Errors: those of ConfigParser, exit code 6 for --json.
std::vector<AppCommand> benchmark_commands();

/// Interprets three rates of quick_perf_test in patches per second: loader alone, step alone, both together. Returns
/// one sentence that names the bottleneck and the setting to change. A pure function.
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
