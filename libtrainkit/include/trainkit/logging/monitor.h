#pragma once
/// Where the time goes: what the loader, the processors and the GPUs say, and the setting to change.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"

namespace trainkit {

/// What happened between two moments of a Prefetcher: `after` minus `before`.
PrefetcherStats difference(const PrefetcherStats& after, const PrefetcherStats& before);

/// What the advice depends on besides the loader's own figures.
struct LoaderSettings {
  int num_workers = 0;
  int prefetch_factor = 2;
  /// Processors that this process may use.
  int cpus = 1;
  /// Share of those that this process used, 0 to 1; negative if it is not known.
  double cpu_share = -1;
};

/// The bottleneck of the input, and the flag that moves it, in one sentence; empty if the step waited less than 5 % of
/// the time or fewer than 10 batches were seen.
///
///   "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4"
///
/// A pure function. It reasons so: readers that are busy for more than 80 % of the time are too few (or, once there is
/// one per processor, too slow; or, if the processors idle meanwhile, waiting for storage, so that more of them than
/// processors help); readers that are not are held up by a ring too short for rows of uneven cost.
std::string loader_advice(const PrefetcherStats& stats, const LoaderSettings& settings);

/// A GPU as its driver sees it: of the whole machine, whoever uses it.
struct GpuUsage {
  std::string name = {};
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
  /// Share of the last sampling period in which a kernel ran, 0 to 1.
  double utilization = 0;
};

/// A process that holds memory of a GPU, of whatever user.
struct GpuProcess {
  /// In the driver's order, as in ResourceMonitor::gpus().
  int gpu = 0;
  int64_t pid = 0;
  /// The program's name; empty if it cannot be seen (another container's).
  std::string name = {};
  /// -1 where the driver does not tell.
  int64_t used_bytes = -1;
};

/// Reads this process's memory and processor time from /proc, and the GPUs from NVIDIA's driver if its library is
/// there. One thread at a time. A sample takes some microseconds, with GPUs up to a millisecond: not for every step.
class ResourceMonitor {
 public:
  /// `nvml_library` is opened with dlopen; where it is missing there are no GPUs.
  explicit ResourceMonitor(const std::string& nvml_library = "libnvidia-ml.so.1");
  ~ResourceMonitor();

  /// Bytes of memory that this process holds (resident set).
  int64_t resident_bytes() const;
  /// Share of its available_cpus() that this process used since the last call (the first: since the start), 0 to 1.
  double cpu_share();
  /// In the driver's order, which CUDA_VISIBLE_DEVICES does not change.
  std::vector<GpuUsage> gpus() const;
  /// Who holds memory of the GPUs. Empty where the driver does not tell.
  std::vector<GpuProcess> gpu_processes() const;

  /// All of it as values of a LogRecord: "host_memory_bytes", "cpu_share", "gpu_utilization/0", "gpu_used_bytes/0", ...
  std::vector<std::pair<std::string, double>> sample();

 private:
  class Nvml;
  std::unique_ptr<Nvml> nvml_;
  int cpus_;
  double wall_seconds_;
  double cpu_seconds_;
};

}  // namespace trainkit
