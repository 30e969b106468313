#pragma once
/// Watches a run: how busy the devices are, where each step's time goes, and the setting to change.

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
  /// Utilisation is taken over windows of this length. At least 1 ms.
  std::chrono::milliseconds window{1000};
  /// The live table: a row every so many windows; 0 shows none.
  int table_every = 0;
  /// Processors that the advice counts on; 0: available_cpus().
  int cpus = 0;
  DriverLibraries libraries = {};
};

/// What LibTorch's allocator holds on one GPU.
struct AllocatorUse {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  /// Times that it found no memory, gave up what it had kept and tried again.
  int64_t retries = 0;
};

/// What a Monitor asks besides the loader. Both functions are called from its thread; none may read the device.
struct MonitorSources {
  std::function<StepTimes()> step_times = nullptr;
  /// LibTorch's numbers of the GPUs that train; empty on the CPU. And what its allocator holds on each.
  std::vector<int> cuda_devices = {};
  std::function<std::vector<AllocatorUse>()> allocators = nullptr;
};

/// One look at a run: everything counted since the beginning, at a moment.
struct MonitorSample {
  /// Of a clock of any origin; only differences count.
  double seconds = 0;
  PrefetcherStats loader = {};
  ReaderTimes readers = {};
  StepTimes steps = {};
  std::vector<GpuUsage> gpus = {};
  std::vector<AllocatorUse> allocators = {};
  HostMemory host = {};
  int64_t resident_bytes = 0;
};

/// What a Monitor has seen so far.
struct MonitorReport {
  /// Training time seen: from the first batch on, without evaluations and saves. 0: nothing yet.
  double seconds = 0;
  /// Mean over the windows (or over all the time seen, if it was shorter than one), and the 5th and 95th percentile of
  /// the windows. Of the GPUs, if their driver tells; else the share of the time that the step did not wait for data.
  double utilisation = 1;
  double utilisation_min = 1;
  double utilisation_max = 1;
  bool of_gpus = false;
  StepSplit split = {};
  /// Batches that were ready when the step asked for one, on average; and how many the loader's ring holds.
  double queue_depth = 0;
  int ring_size = 0;
  /// Its period is in seconds here.
  std::optional<Swing> swing = {};
  /// Most of this process's host memory, and of the GPUs' memory whoever uses it.
  int64_t resident_bytes = 0;
  int64_t gpu_used_bytes = 0;
  std::vector<Advice> advice = {};
};

/// The report in one line:
///
///   utilisation 62% (9 to 90% every 9.0 s); step: wait 38%, copy 0%, compute 62%, reduce 0%; queue 0.4 of 4; <advice>
std::string describe(const MonitorReport& report);

/// Windows, sums and extremes of a series of samples: the Monitor without its thread and its clock.
///
/// Utilisation of a window is the mean of the GPUs' samples in it, or one minus its share of waiting. A wait counts in
/// the windows in which it passes, not in the one in which it ends. At most the last ten minutes of windows are kept.
class MonitorSeries {
 public:
  MonitorSeries(const LoaderSettings& settings, double window_seconds);

  /// Samples come in the order of time. The time seen begins with the first one that has a batch: what comes before is
  /// the start of the run. Returns whether a window has ended.
  bool add(const MonitorSample& sample);
  /// Time between the two is none; samples in between are ignored.
  void pause(double seconds);
  void resume(double seconds);

  /// `seconds` less the pauses before it.
  double training_time(double seconds) const { return seconds - paused_seconds_; }
  MonitorReport report() const;
  /// Utilisation of the windows, the oldest first.
  const std::vector<double>& windows() const { return windows_; }
  /// Utilisation of each GPU in the window that ended last; -1 where its driver does not tell. Empty before that.
  const std::vector<double>& of_each_gpu() const { return window_of_each_gpu_; }
  /// Whether the last window's utilisation is the GPUs'.
  bool of_gpus() const { return window_of_gpus_; }
  /// Of the window that ended last; a row of the live table, and its heading.
  std::string table_row() const;
  static std::string table_heading();

 private:
  void close_window(const MonitorSample& sample);
  void note_memory(const MonitorSample& sample);

  LoaderSettings settings_;
  double window_seconds_;
  std::optional<int64_t> batches_before_;  // of the loader, when the run began
  // In training time.
  std::optional<MonitorSample> first_;
  MonitorSample last_, window_start_;
  std::optional<double> paused_at_;
  double paused_seconds_ = 0;
  double window_gpu_sum_ = 0, gpu_sum_ = 0;
  int64_t window_gpu_samples_ = 0, gpu_samples_ = 0;
  std::vector<double> windows_;
  std::vector<std::pair<double, int64_t>> window_gpus_;  // sum and number of the samples of each
  std::vector<double> window_of_each_gpu_;
  StepSplit window_split_;
  double window_queue_ = 0;
  bool window_of_gpus_ = false;
  HostMemory least_host_;
  std::optional<GpuMemory> least_gpu_;
  int64_t resident_bytes_ = 0, gpu_used_bytes_ = 0;
};

/// Watches a loader and what trains on it from a thread of its own, which looks four times a window. The training
/// thread pays nothing for it; nothing reads the device.
///
///   Monitor monitor(*loader, {.step_times = [&] { return step.times(); }});
///   while (auto batch = loader->next().value()) step(*batch, loss);
///   std::puts(describe(monitor.stop()).c_str());
///
/// Trainer has one. It recommends; it changes nothing. The loader and the sources must outlive it. All functions may be
/// called from any thread but its own.
class Monitor {
 public:
  Monitor(const Prefetcher& loader, MonitorSources sources = {}, const MonitorOptions& options = {});
  /// Ends the thread; waits for a sample under way, about a millisecond.
  ~Monitor();

  /// Time between the two is not training: an evaluation, a checkpoint.
  void pause();
  void resume();

  /// Begins the time that the report is about, now that the first batch is there; else it begins with the next look.
  void begin();

  /// What happened since the last call, as values of a training record: "utilisation", "data_wait_fraction",
  /// "copy_fraction", "compute_fraction", "reduce_fraction", "queue_depth", "host_memory_bytes". "utilisation" is the
  /// last window's where GPUs tell it, else it belongs to the same time as the others.
  void append_values(std::vector<std::pair<std::string, double>>& values);

  /// Utilisation of each of MonitorSources::cuda_devices in the last window, in their order; -1 where its driver does
  /// not tell. Empty before the first window has ended.
  std::vector<double> gpu_utilisation() const;

  /// The rows of the live table since the last call, to be printed; costs a relaxed load while there are none.
  std::vector<std::string> take_rows();

  MonitorReport report() const;
  /// Takes a last sample, ends the thread and returns the report of the whole run.
  MonitorReport stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
