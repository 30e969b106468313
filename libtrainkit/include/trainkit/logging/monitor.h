#pragma once
/// Monitors a run: device utilisation, where the step time goes, and which setting to change.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainkit/data/prefetcher.h"
#include "trainkit/logging/diagnosis.h"
#include "trainkit/logging/resource_monitor.h"
#include "trainkit/logging/step_times.h"
#include "trainkit/logging/swing.h"

namespace trainkit {

struct MonitorOptions {
  /// Length of a utilisation window. At least 1 ms.
  std::chrono::milliseconds window{1000};
  /// Windows per row of the live table. 0 disables the table.
  int table_every = 0;
  /// CPUs that the advice may use. 0 means available_cpus().
  int cpus = 0;
  DriverLibraries libraries = {};
};

/// Memory statistics of LibTorch's allocator on one GPU.
struct AllocatorUse {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  /// Allocation retries: no memory was found, the cache was freed and the allocation repeated.
  int64_t retries = 0;
};

/// Sources that a Monitor samples in addition to the loader. Its thread calls both functions; neither may read the
/// device.
struct MonitorSources {
  std::function<StepTimes()> step_times = nullptr;
  /// LibTorch device indices of the GPUs that train (empty on the CPU), and the allocator statistics of each.
  std::vector<int> cuda_devices = {};
  std::function<std::vector<AllocatorUse>()> allocators = nullptr;
};

/// One sample of a run: all counters since its start.
struct MonitorSample {
  /// Time of a clock with any origin; only differences are used.
  double seconds = 0;
  PrefetcherStats loader = {};
  ReaderTimes readers = {};
  StepTimes steps = {};
  std::vector<GpuUsage> gpus = {};
  std::vector<AllocatorUse> allocators = {};
  HostMemory host = {};
  int64_t resident_bytes = 0;
};

/// Results of a Monitor so far.
struct MonitorReport {
  /// Observed training time, from the first batch on, without evaluations and checkpoints. 0 if nothing was observed
  /// yet.
  double seconds = 0;
  /// Mean, 5th and 95th percentile of the utilisation over the windows. The mean is over all observed time if that is
  /// shorter than a window. GPU utilisation if the driver reports it (`of_gpus`); otherwise the share of time in which
  /// the step did not wait for data.
  double utilisation = 1;
  double utilisation_min = 1;
  double utilisation_max = 1;
  bool of_gpus = false;
  StepSplit split = {};
  /// Mean number of batches ready when the step asks for one, and the capacity of the loader's ring.
  double queue_depth = 0;
  int ring_size = 0;
  /// Periodic swing of the utilisation. The period is in seconds.
  std::optional<Swing> swing = {};
  /// Peak host memory of this process, and peak memory in use on the GPUs, by any process.
  int64_t resident_bytes = 0;
  int64_t gpu_used_bytes = 0;
  std::vector<Advice> advice = {};
};

/// Formats the report as one line:
///
///   utilisation 62% (9 to 90% every 9.0 s); step: wait 38%, copy 0%, compute 62%, reduce 0%; queue 0.4 of 4; <advice>
std::string describe(const MonitorReport& report);

/// Aggregates a series of samples into windows, sums and extremes: the Monitor without its thread and clock.
///
/// The utilisation of a window is the mean of the GPU samples in it, or one minus the share of waiting. A wait is
/// attributed to the windows in which it passes, not to the window in which it ends. Only the last ten minutes of
/// windows are kept.
class MonitorSeries {
 public:
  MonitorSeries(const LoaderSettings& settings, double window_seconds);

  /// Adds a sample and returns whether a window has ended. Samples must be in time order. The observed time begins with
  /// the first sample that has a batch, so the start of the run is not counted.
  bool add(const MonitorSample& sample);
  /// Excludes the time between the two calls; samples in between are ignored.
  void pause(double seconds);
  void resume(double seconds);

  /// Returns `seconds` minus all pauses before it.
  double training_time(double seconds) const { return seconds - paused_seconds_; }
  MonitorReport report() const;
  /// Utilisation of each window, oldest first.
  const std::vector<double>& windows() const { return windows_; }
  /// Utilisation of each GPU in the last finished window. -1 if its driver does not report it. Empty before the first
  /// window.
  const std::vector<double>& of_each_gpu() const { return window_of_each_gpu_; }
  /// Whether the utilisation of the last window comes from the GPUs.
  bool of_gpus() const { return window_of_gpus_; }
  /// Returns the row of the live table for the last finished window, and the table's heading.
  std::string table_row() const;
  static std::string table_heading();

 private:
  void close_window(const MonitorSample& sample);
  void update_memory_extremes(const MonitorSample& sample);

  LoaderSettings settings_;
  double window_seconds_;
  std::optional<int64_t> batches_before_;  // loader batches at the start of the run
  // In training time (without pauses).
  std::optional<MonitorSample> first_;
  MonitorSample last_, window_start_;
  std::optional<double> paused_at_;
  double paused_seconds_ = 0;
  double window_gpu_sum_ = 0, gpu_sum_ = 0;
  int64_t window_gpu_samples_ = 0, gpu_samples_ = 0;
  std::vector<double> windows_;
  std::vector<std::pair<double, int64_t>> window_gpus_;  // sum and count of each GPU's samples
  std::vector<double> window_of_each_gpu_;
  StepSplit window_split_;
  double window_queue_ = 0;
  bool window_of_gpus_ = false;
  HostMemory least_host_;
  std::optional<GpuMemory> least_gpu_;
  int64_t resident_bytes_ = 0, gpu_used_bytes_ = 0;
};

/// Watches a loader and its training loop from its own thread, four times per window. Adds no work to the training
/// thread and never reads the device.
///
///   Monitor monitor(*loader, {.step_times = [&] { return step.times(); }});
///   while (auto batch = loader->next().value()) step(*batch, loss);
///   std::puts(describe(monitor.stop()).c_str());
///
/// Trainer owns one. A Monitor gives advice and changes nothing. The loader and the sources must outlive it. Every
/// method may be called from any thread except the Monitor's own.
class Monitor {
 public:
  Monitor(const Prefetcher& loader, MonitorSources sources = {}, const MonitorOptions& options = {});
  /// Stops the thread. Waits for a sample in progress, about a millisecond.
  ~Monitor();

  /// Excludes the time between the two calls from training: an evaluation, a checkpoint.
  void pause();
  void resume();

  /// Starts the reported time when the first batch is ready. Without this call it starts with the next sample.
  void begin();

  /// Appends the values since the last call to a training record: "utilisation", "data_wait_fraction", "copy_fraction",
  /// "compute_fraction", "reduce_fraction", "queue_depth", "host_memory_bytes". If the GPUs report utilisation,
  /// "utilisation" is that of the last window; otherwise it covers the same time as the other values.
  void append_values(std::vector<std::pair<std::string, double>>& values);

  /// Returns the utilisation of each of MonitorSources::cuda_devices in the last window, in that order. -1 if its
  /// driver does not report it. Empty before the end of the first window.
  std::vector<double> gpu_utilisation() const;

  /// Returns the rows of the live table since the last call, ready to print. Costs one relaxed load if there is none.
  std::vector<std::string> take_rows();

  MonitorReport report() const;
  /// Takes a last sample, stops the thread and returns the report of the whole run.
  MonitorReport stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
