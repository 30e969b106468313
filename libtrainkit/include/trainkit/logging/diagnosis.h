#pragma once
/// From what was measured to the setting to change: the tuning table as a function.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/core/processors.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/logging/step_times.h"
#include "trainkit/logging/swing.h"

namespace trainkit {

/// What happened between two moments of a Prefetcher: `after` minus `before`. longest_wait_seconds is that of `after`.
PrefetcherStats difference(const PrefetcherStats& after, const PrefetcherStats& before);
ReaderTimes difference(const ReaderTimes& after, const ReaderTimes& before);
StepTimes difference(const StepTimes& after, const StepTimes& before);

/// Where the time of the steps went, as shares of 1.
struct StepSplit {
  /// Waiting for data; bringing it to the device; reducing gradients. The host's time each.
  double wait = 0;
  double copy = 0;
  double reduce = 0;
  /// The rest: forward, backward, update, and the loop itself.
  double compute = 0;
  /// The part of `compute` that updates the weights, which costs the same for any number of rows.
  double update = 0;
};

/// Of `seconds` that passed while all this happened.
StepSplit split_of(double seconds, const PrefetcherStats& loader, const StepTimes& steps);

/// What the advice depends on besides the figures.
struct LoaderSettings {
  int64_t batch_size = 1;
  int num_workers = 0;
  int prefetch_factor = 2;
  bool persistent_workers = true;
  /// Longest wait for a batch; 0 is for ever.
  double timeout_seconds = 0;
  /// Batches of an epoch; 0 if it is not known.
  int64_t batches_per_epoch = 0;
  /// Trains on a GPU; and host memory that batches are copied from is page-locked.
  bool on_gpu = false;
  bool pinned = false;
  /// Processors that this process may use.
  int cpus = 1;
};

/// Those of a loader that feeds `on_gpu`.
LoaderSettings settings_of(const Prefetcher& loader, bool on_gpu, int cpus);

/// Memory of one GPU.
struct GpuMemory {
  int64_t total_bytes = 0;
  /// Free for other tensors: with the driver, or kept by LibTorch's allocator.
  int64_t free_bytes = 0;
  /// Times that LibTorch's allocator found no memory, gave up what it had kept and tried again.
  int64_t retries = 0;
};

/// A stretch of training.
struct Observation {
  /// Its length, without evaluations and saves.
  double seconds = 0;
  PrefetcherStats loader = {};
  ReaderTimes readers = {};
  StepTimes steps = {};
  /// Mean share of the time that the GPUs worked; negative if nobody tells.
  double gpu_utilisation = -1;
  /// Of the utilisation over time.
  std::optional<Swing> swing = {};
  /// The least that was left.
  HostMemory host = {};
  std::optional<GpuMemory> gpu = {};
};

/// The rows of the tuning table (docs/tuning.md).
enum class Bottleneck {
  kMemory,         ///< The GPU's memory, or the host's, is nearly used up.
  kTimeout,        ///< Waits for a batch come near the loader's timeout.
  kPinnedMemory,   ///< Copies to the GPU come from memory that is not page-locked.
  kNoWorkers,      ///< The training thread reads the rows itself.
  kEpochStart,     ///< Worker threads end with each epoch, and the next begins without a batch.
  kSwing,          ///< The load swings between waiting and working in a steady rhythm.
  kSlowStorage,    ///< Readers stand still until the disk or the network answers.
  kSlowDecode,     ///< Rows cost more processor time than there is.
  kTooFewWorkers,  ///< Readers are always busy, and processors are left for more.
  kShortRing,      ///< Readers keep up on the whole, but too few batches are kept ready.
  kSmallBatch,     ///< What every step costs for any number of rows outweighs the rows.
};
const char* to_string(Bottleneck row);

/// One row that applies.
struct Advice {
  Bottleneck row;
  /// The flag to change: "--num_workers". Empty if no flag helps.
  std::string flag;
  /// "data wait 43%: the 2 readers are always busy; raise --num_workers from 2 to 4"
  std::string text;
};

/// The rows that apply, the most urgent first; none if all is well or fewer than 10 batches were seen. Of the rows that
/// explain why the step waits for data, at most one.
///
/// A pure function. A step that waits for data less than 5 % of the time does not wait. Readers that are busy for more
/// than 80 % of the time are too few; unless they stand still for more than half of that time (neither on a processor
/// nor queueing for one), which is the storage's fault, or all processors together could not decode fast enough.
/// Readers that are not busy are held up by a ring too short for rows of uneven cost. A batch is too small if the step
/// does not wait for data, and the GPU idles for more than 30 % of the time all the same, or the update takes more than
/// 40 % of the computing, or reducing gradients more than 30 % of the step. Memory is short if less than a twentieth of
/// it is free, or LibTorch's allocator had to try again; a timeout is near if a wait took half of it.
std::vector<Advice> diagnose(const Observation& seen, const LoaderSettings& settings);

}  // namespace trainkit
