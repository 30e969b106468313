// Conclusions from measured rates: pure functions of benchmark.h.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "hsi_classification/benchmark.h"

namespace trainkit::hsi {

std::string perf_verdict(double loader, double step, double both, int64_t num_workers, FeedKind feed) {
  const double share = both / step;
  const std::string used = feed == FeedKind::kDevice ? "--feed device" : "--feed loader";
  if (share >= 0.9) {
    return fmt::format("the step is not starved: with {} training reaches {:.0f}% of the rate of the step alone", used,
                       100 * share);
  }
  if (loader < 1.1 * step) {
    return fmt::format(
        "the loader starves the step (it delivers {:.0f}% of the step's rate): use --feed device if the cube fits, "
        "else "
        "--num_workers {}",
        100 * loader / step, std::max<int64_t>(2 * num_workers, 2));
  }
  return fmt::format(
      "loader and step are fast enough alone but compete for the processors (together {:.0f}% of the step's rate "
      "alone): use fewer --num_workers or --feed device",
      100 * share);
}

SweepPoint recommended(const std::vector<SweepPoint>& points) {
  TORCH_CHECK(!points.empty(), "nothing was measured");
  double fastest = 0;
  for (const SweepPoint& point : points) fastest = std::max(fastest, point.patches_per_second);
  const auto cost = [](const SweepPoint& point) {
    const bool loader = point.feed == FeedKind::kLoader;
    return std::tuple(point.batch_size, loader ? point.num_workers : 0, loader ? point.prefetch_factor : 0, loader);
  };
  const SweepPoint* best = nullptr;
  for (const SweepPoint& point : points) {
    if (point.patches_per_second < 0.97 * fastest) continue;
    if (!best || cost(point) < cost(*best)) best = &point;
  }
  return *best;
}

}  // namespace trainkit::hsi
