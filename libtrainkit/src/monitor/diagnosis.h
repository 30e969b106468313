#pragma once
/// Turns measurements of a run into advice: the tuning table (docs/tuning.md) as a pure function.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/machine/host_memory.h"
#include "core/machine/processor_times.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/monitor/monitor.h"

namespace trainkit {

/// Counts and times between two snapshots: `after` minus `before`. longest_wait_seconds is taken from `after`.
PrefetcherStats difference(const PrefetcherStats& after, const PrefetcherStats& before);
ReaderTimes difference(const ReaderTimes& after, const ReaderTimes& before);
StepTimes difference(const StepTimes& after, const StepTimes& before);
ProcessorTimes difference(const ProcessorTimes& after, const ProcessorTimes& before);

/// Computes the shares of `seconds`, the wall time over which `loader` and `steps` were measured.
StepSplit split_of(double seconds, const PrefetcherStats& loader, const StepTimes& steps);

/// Settings of the loader and the machine that diagnose() uses.
struct LoaderSettings {
  /// False for batches that no Prefetcher provides: its flags are no remedy.
  bool is_loader = true;
  int64_t batch_size = 1;
  int num_workers = 0;
  int prefetch_factor = 2;
  bool persistent_workers = true;
  /// Longest wait for a batch. 0 means unlimited.
  double timeout_seconds = 0;
  /// Batches per epoch. 0 if unknown.
  int64_t batches_per_epoch = 0;
  /// Whether training runs on a GPU, and whether batches are in page-locked (pinned) memory.
  bool on_gpu = false;
  bool pinned = false;
  /// CPUs available to this process, and LibTorch's intra-op threads.
  int cpus = 1;
  int threads = 1;
};

/// Returns the settings of `loader`, or those of a loop without one.
LoaderSettings settings_of(const Prefetcher& loader, bool on_gpu, int cpus);
LoaderSettings settings_without_loader(bool on_gpu, int cpus);

/// Memory of one GPU.
struct GpuMemory {
  int64_t total_bytes = 0;
  /// Bytes free for new tensors: free in the driver, or cached by LibTorch's allocator.
  int64_t free_bytes = 0;
  /// Allocation retries: LibTorch's allocator found no memory, freed its cache and tried again.
  int64_t retries = 0;
};

/// Measurements over a period of training.
struct Observation {
  /// Wall time, without evaluations and checkpoints.
  double seconds = 0;
  PrefetcherStats loader = {};
  ReaderTimes readers = {};
  StepTimes steps = {};
  ProcessorTimes processors = {};
  /// Mean GPU utilisation from 0 to 1, over windows of this length. Negative if no driver reports it.
  double gpu_utilisation = -1;
  double window_seconds = 1;
  /// Periodic swing of the utilisation, if there is one.
  std::optional<Swing> swing = {};
  /// Host memory at its lowest free amount.
  HostMemory host = {};
  std::optional<GpuMemory> gpu = {};
};

/// Returns the recommendations that apply, most urgent first. Empty if nothing is wrong or if fewer than 10 batches
/// were seen. At most one recommendation explains why the step waits for data.
///
/// A pure function. The rules:
///   Data wait: a step waits for data if it spends at least 5 % of the time waiting.
///   Too few readers: readers are busy for more than 80 % of the time.
///   Slow storage: busy readers are blocked (neither on a CPU nor queueing for one) for more than half of that time.
///   Slow decoding: all CPUs together could not decode fast enough.
///   Epoch start: readers are not busy, stop after each epoch, and at least two epochs were seen.
///   Swing: readers are not busy, and the utilisation swings.
///   Short ring: readers are not busy for another reason. Rows of uneven cost need a longer ring.
///   Pinned memory: batches for a GPU are not page-locked, and copies take at least 5 % of the step or the GPU idles
///   for more than 30 % of the time.
///   Small batch: the step does not wait for data, and one of these holds: the GPU idles for more than 30 % of the
///   time, the update takes more than 40 % of the compute time, or reducing gradients takes more than 30 % of the step.
///   Busy machine: other processes use more than a tenth of the processors, and threads of this process, which want at
///   least half a processor, wait for one for more than a tenth of the time in which they could run.
///   Memory: less than a twentieth is free, or LibTorch's allocator had to retry.
///   Timeout: a wait took at least half of the timeout.
std::vector<Advice> diagnose(const Observation& seen, const LoaderSettings& settings);

}  // namespace trainkit
