#include "trainkit/core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

namespace trainkit {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int affinity_cpus() {
  // A machine with more processors than a cpu_set_t has bits wants a larger set.
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

// Whether a list "cpu,cpuacct" has `name`.
bool names(const std::string& list, const std::string& name) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry == name) return true;
  }
  return false;
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

// The smallest quota of a group and all above it: each of them holds.
template <class Quota>
double smallest(const std::string& mount, std::string group, Quota quota) {
  double least = 0;
  for (;;) {
    if (const double here = quota(mount + group); here > 0) least = least > 0 ? std::min(least, here) : here;
    if (group.empty() || group == "/") return least;
    group.resize(group.find_last_of('/'));
  }
}

}  // namespace

namespace detail {

double cgroup_cpus(const std::string& root, const std::string& membership) {
  std::istringstream lines(membership);
  double least = 0;
  for (std::string line; std::getline(lines, line);) {  // "0::/group" (version 2) or "4:cpu,cpuacct:/group"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    double here = 0;
    if (controllers.empty()) {
      here = smallest(root, group, quota_v2);
    } else if (names(controllers, "cpu")) {
      here = smallest(root + "/cpu", group, quota_v1);
    }
    if (here > 0) least = least > 0 ? std::min(least, here) : here;
  }
  return least;
}

}  // namespace detail

int available_cpus() {
  const int cpus = std::max(1, affinity_cpus());
  const double quota = detail::cgroup_cpus("/sys/fs/cgroup", read_text("/proc/self/cgroup"));
  return quota > 0 ? std::clamp(static_cast<int>(std::ceil(quota)), 1, cpus) : cpus;
}

int suggest_num_workers(int devices, int ranks) {
  const int per_machine = std::min({available_cpus() / 2, 8, 2 * std::max(1, devices)});
  return std::max(1, per_machine / std::max(1, ranks));
}

int suggest_intra_op_threads(int num_workers, ReadCost cost, int ranks) {
  const int busy_workers = cost == ReadCost::kCopy ? 0 : num_workers;
  return std::max(1, available_cpus() / std::max(1, ranks) - busy_workers);
}

}  // namespace trainkit
