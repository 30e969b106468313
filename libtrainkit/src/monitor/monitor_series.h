#pragma once
/// Aggregates samples of a run: the Monitor without its thread and clock.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "monitor/diagnosis.h"
#include "monitor/resource_monitor.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {

/// One sample of a run: all counters since its start.
struct MonitorSample {
  /// Time of a clock with any origin; only differences are used.
  double seconds = 0;
  PrefetcherStats loader = {};
  ReaderTimes readers = {};
  StepTimes steps = {};
  ProcessorTimes processors = {};
  std::vector<GpuUsage> gpus = {};
  std::vector<AllocatorUse> allocators = {};
  HostMemory host = {};
  int64_t resident_bytes = 0;
};

/// Finds a periodic swing in `values`: the percentiles differ by at least `least`, and the series repeats itself.
///
///   find_swing(utilisation_per_second)     // {0.09, 0.90, 9.0}: every nine seconds
///
/// The period is the first lag whose autocorrelation (Pearson, over the overlapping values) exceeds the level of noise:
/// 3.5 standard errors, at least 0.5. It must have been below that level at a shorter lag. So a period is at least 2
/// samples and fits twice into the series.
///
/// Noise is reported as a swing in fewer than one of a hundred series, a constant series never. Runs in quadratic time:
/// use some hundreds of values.
std::optional<Swing> find_swing(std::span<const double> values, double least = 0.2);

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

}  // namespace trainkit
