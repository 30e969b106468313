#include "trainkit/job_sizes.h"

#include <fmt/format.h>

#include <string_view>

#include "trainkit/app/job_sizes.h"

namespace trainkit::tool {
namespace {

/// Returns the number with three digits: "1.49 billion".
std::string describe_count(double count) {
  if (count >= 1e9) return fmt::format("{:.3g} billion", count / 1e9);
  return count >= 1e6 ? fmt::format("{:.3g} million", count / 1e6) : fmt::format("{:.0f}", count);
}

}  // namespace

void add_job_sizes(Findings& findings, int64_t memory, int64_t disk) {
  for (const JobCost& cost : kJobCosts) {
    const std::string_view unit = cost.unit;
    const bool by_memory = cost.memory > 0;
    const auto bytes = static_cast<double>(by_memory ? memory : disk);
    if (bytes < 0) continue;
    const double count = bytes / (by_memory ? cost.memory : cost.disk);
    findings.add("largest job", fmt::format("{}s", unit), static_cast<int64_t>(count),
                 fmt::format("{} ({:g} bytes of {} each)", describe_count(count), by_memory ? cost.memory : cost.disk,
                             by_memory ? "memory" : "disk"));
  }
}

}  // namespace trainkit::tool
