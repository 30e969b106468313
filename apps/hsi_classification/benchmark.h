#pragma once
/// The commands that measure instead of training: trainkit-hsi benchmark, sweep, quick_perf_test. None needs data.

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hsi_classification/perf.h"

namespace trainkit::hsi {

/// Whether the first word is one of the commands.
bool is_benchmark_command(int argc, const char* const* argv);

/// Runs it and prints what it finds. Errors: those of ConfigParser, exit code 6 for --json.
absl::StatusOr<int> run_benchmark_command(int argc, const char* const* argv);

/// What quick_perf_test says of three rates in patches a second: the loader alone, the step alone, and both together.
/// One sentence that names the bottleneck and the setting to change. A pure function.
std::string perf_verdict(double loader, double step, double both, int64_t num_workers, FeedKind feed);

/// One combination that sweep has measured.
struct SweepPoint {
  FeedKind feed = FeedKind::kDevice;
  int64_t num_workers = 0, prefetch_factor = 2, batch_size = 32;
  double patches_per_second = 0;
};

/// The point to recommend: of those within 3 % of the fastest the one with the smallest batch, then the fewest workers,
/// then the least prefetch, then without a loader. A pure function; at least one point.
SweepPoint recommended(const std::vector<SweepPoint>& points);

}  // namespace trainkit::hsi
