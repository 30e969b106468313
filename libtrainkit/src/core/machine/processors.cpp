#include "trainkit/core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <thread>

#include "core/machine/cgroup.h"

namespace trainkit {

using detail::read_text;

namespace {

int affinity_cpus() {
  // sched_getaffinity fails if the machine has more processors than the set has bits: retry with a larger set.
  for (int bits = CPU_SETSIZE; bits <= (1 << 20); bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(bits);
    const size_t bytes = CPU_ALLOC_SIZE(bits);
    const bool known = set && sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

double quota_v2(const std::string& folder) {
  std::istringstream text(read_text(folder + "/cpu.max"));  // "200000 100000" or "max 100000"
  double quota = 0, period = 0;
  return text >> quota >> period && period > 0 ? quota / period : 0;
}

double quota_v1(const std::string& folder) {
  double quota = -1, period = 0;
  std::istringstream(read_text(folder + "/cpu.cfs_quota_us")) >> quota;
  std::istringstream(read_text(folder + "/cpu.cfs_period_us")) >> period;
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

namespace detail {

double cgroup_cpus(const std::string& root, const std::string& membership) {
  double least = 0;  // all quotas apply, so the smallest one counts
  for_each_cgroup(root, membership, "cpu", [&](const std::string& folder, int version) {
    const double here = version == 2 ? quota_v2(folder) : quota_v1(folder);
    if (here > 0) least = least > 0 ? std::min(least, here) : here;
  });
  return least;
}

}  // namespace detail

int available_cpus() {
  const int cpus = std::max(1, affinity_cpus());
  const double quota = detail::cgroup_cpus("/sys/fs/cgroup", read_text("/proc/self/cgroup"));
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, cpus) : cpus;
}

int suggest_num_workers(int devices, int ranks, int cpus) {
  const int per_machine = std::min({cpus / 2, 8, 2 * std::max(1, devices)});
  return std::max(1, per_machine / std::max(1, ranks));
}

int suggest_intra_op_threads(int num_workers, ReadCost cost, int ranks) {
  const int busy_workers = cost == ReadCost::kCopy ? 0 : num_workers;
  return std::max(1, available_cpus() / std::max(1, ranks) - busy_workers);
}

}  // namespace trainkit
