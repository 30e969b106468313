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

namespace trainkit {

/// Total seconds of all steps since the start. On a GPU these are host times; the host runs ahead of the device.
struct StepTimes {
  /// Copying rows from the host to the devices. Copies made ahead by the Prefetcher are in its own statistics.
  double copy_seconds = 0;
  /// Reducing gradients between devices and ranks, as far as it does not overlap with backward, and agreeing on the
  /// step.
  double reduce_seconds = 0;
  /// Clipping, optimizer and schedule: the part of the compute time that does not depend on the batch size.
  double update_seconds = 0;
};

/// Shares of the step time, each from 0 to 1.
struct StepSplit {
  /// Host time spent waiting for data, copying it to the device, and reducing gradients.
  double wait = 0;
  double copy = 0;
  double reduce = 0;
  /// Forward, backward, update and the loop itself: the remaining time.
  double compute = 0;
  /// The part of `compute` spent updating the weights. Independent of the batch size.
  double update = 0;
};

/// A periodic swing of a series sampled at equal intervals.
struct Swing {
  /// 5th and 95th percentile, so that single outliers do not count.
  double min = 0;
  double max = 0;
  /// Period in samples; interpolated, so it may be fractional.
  double period = 0;
};

/// Causes of slow training: the rows of the tuning table (docs/tuning.md).
enum class Bottleneck {
  kMemory,         ///< GPU or host memory is nearly exhausted.
  kTimeout,        ///< A wait for a batch came close to the loader's timeout.
  kPinnedMemory,   ///< Batches are copied to the GPU from memory that is not page-locked.
  kNoWorkers,      ///< The training thread reads the rows itself.
  kEpochStart,     ///< Worker threads stop after each epoch, so the next epoch starts with an empty ring.
  kSwing,          ///< Utilisation swings periodically between waiting and working.
  kSlowStorage,    ///< Readers are blocked on the disk or the network.
  kSlowDecode,     ///< Decoding needs more CPU time than the machine has.
  kTooFewWorkers,  ///< Readers are always busy, and CPUs are free for more of them.
  kShortRing,      ///< Readers keep up on average, but too few batches are prefetched.
  kSmallBatch,     ///< The fixed cost of a step is larger than the cost of its rows.
  kBusyMachine,    ///< Other processes use the processors.
};
const char* to_string(Bottleneck row);

/// One recommendation.
struct Advice {
  Bottleneck row;
  /// The flag to change: "--num_workers". Empty if no flag helps.
  std::string flag;
  /// "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4"
  std::string text;
};

struct MonitorOptions {
  /// Length of a utilisation window. At least 1 ms.
  std::chrono::milliseconds window{1000};
  /// Windows per row of the live table. 0 disables the table.
  int table_every = 0;
  /// CPUs that the advice may use. 0 means available_cpus().
  int cpus = 0;
  /// Names of the driver's libraries, opened with dlopen. If one is missing, no GPUs are reported.
  std::string nvml = "libnvidia-ml.so.1", cuda = "libcuda.so.1";
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
  /// Memory of a step at its peak on a device, as planned and as measured. The Trainer knows it; 0: unknown.
  int64_t predicted_step_bytes = 0;
  int64_t real_step_bytes = 0;
  std::vector<Advice> advice = {};
};

/// Formats the report as one line:
///
///   utilisation 62% (9 to 90% every 9.0 s); step: wait 38%, copy 0%, compute 62%, reduce 0%; queue 0.4 of 4; <advice>
std::string describe(const MonitorReport& report);

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
  /// Watches a loop that takes its batches from something else, of which `waits` gives batches, rows and wait_seconds.
  /// Its thread calls `waits`. There is no advice on a loader then.
  Monitor(std::function<PrefetcherStats()> waits, MonitorSources sources, const MonitorOptions& options);
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
