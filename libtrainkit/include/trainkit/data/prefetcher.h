#pragma once
/// Loads batches ahead of the training loop.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainkit/core/state_dict.h"
#include "trainkit/data/batch.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/sampler.h"

namespace trainkit {

/// What happens to a row that cannot be read.
enum class OnError {
  kFail,    ///< next() returns the error.
  kSkip,    ///< The row is left out and the batch is shorter. A batch without rows is left out too, but for a rank's
            ///< (DistributedSampler): it comes empty, so that all ranks have as many batches.
  kReplace  ///< The next row of the order takes its place: batches stay full.
};

/// PyTorch's names and defaults (torch.utils.data.DataLoader, PyTorch 2.11).
struct PrefetcherOptions {
  /// Rows per batch on this rank. At least 1.
  int64_t batch_size = 1;
  /// Threads that read rows. 0 reads in the calling thread, the easiest to debug.
  int num_workers = 0;
  /// Batches each worker keeps ready, 1 to 64; the one that the consumer holds is among them. Host memory is
  /// num_workers * prefetch_factor * bytes per batch (at least two batches). Where a batch takes microseconds, 8 or
  /// more pays: workers then read up to half of it per claim and wake the consumer once.
  int prefetch_factor = 2;
  /// At the end of an epoch in which next() waited for more than a twentieth of the time though the workers had time
  /// left, go on with a prefetch_factor of 4 if it is less: the ring was too short.
  bool adaptive_prefetch = false;
  /// Keep threads and memory from one epoch to the next.
  bool persistent_workers = false;
  /// Leave out a last batch that is not full.
  bool drop_last = false;
  /// When next() would wait, let it read a batch itself, in the calling thread: more throughput where the consumer
  /// would be idle and cores are few. Off by default: user code then runs in the consumer's thread too, with its
  /// LibTorch settings, and `timeout` cannot interrupt a read that the consumer itself is in.
  bool consumer_assist = false;
  /// Longest wait for a batch; zero waits for ever. Without effect where the consumer reads (num_workers = 0).
  std::chrono::milliseconds timeout{0};
  /// Page-lock the memory of batches, so that copies to a CUDA device overlap with work. Always so if `device` is one;
  /// without effect where there is no CUDA device.
  bool pin_memory = false;
  /// Where next() leaves the tensors. A CUDA device: copied there ahead of time, on a stream of its own.
  at::Device device = at::kCPU;
  OnError on_error = OnError::kFail;
  /// Different bad rows after which the run ends in spite of on_error; -1 is no limit.
  int64_t max_bad_samples = -1;
};

/// A row that could not be read.
struct BadSample {
  int64_t index = 0;
  int64_t epoch = 0;
  std::string name = {};  ///< Dataset::describe, may be empty.
  std::string cause = {};
};

/// What a Prefetcher has done since it was created; read at any time from any thread.
struct PrefetcherStats {
  int64_t batches = 0;
  int64_t rows = 0;
  /// Time that next() waited for a batch that was not ready (a wait under way counts so far), and time between calls of
  /// next().
  double wait_seconds = 0;
  double consumer_seconds = 0;
  /// The longest of those waits.
  double longest_wait_seconds = 0;
  /// Time that next() took to hand batches to the device; 0 on the CPU. The copies themselves go on meanwhile.
  double copy_seconds = 0;
  /// Time workers spent in Dataset::get and get_batch, summed over the workers.
  double read_seconds = 0;
  /// Batches that were ready when next() was called, summed over the calls (divide by batches for the mean depth).
  int64_t ready_batches = 0;
  /// Batches that each worker keeps ready now; see adaptive_prefetch.
  int prefetch_factor = 0;
  /// Allocations of batch memory so far; constant once warm.
  int64_t allocations = 0;

  /// Share of the time that the consumer waited, 0 to 1.
  double wait_fraction() const {
    const double total = wait_seconds + consumer_seconds;
    return total > 0 ? wait_seconds / total : 0;
  }
};

/// What a Prefetcher's worker threads did since it was created, summed over them. What read_seconds has beyond both,
/// they waited for storage.
struct ReaderTimes {
  /// On a processor.
  double cpu_seconds = 0;
  /// Ready to run while others had the processors; 0 where the kernel does not tell (/proc/self/task/N/schedstat).
  double queued_seconds = 0;
};

/// Loads batches ahead of the training loop.
///
///   auto loader = Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 7}),
///                                    {.batch_size = 256, .num_workers = 4}).value();
///   while (auto batch = loader->next().value()) { step(*batch); }     // one epoch
///   while (auto batch = loader->next().value()) { step(*batch); }     // the next
///
/// The batches are the same, bit for bit, for any num_workers. One thread calls next(); the dataset is called from
/// every worker. Workers are threads; nothing forks. Batches are built in a ring of num_workers * prefetch_factor slots
/// that is reused: no memory is allocated once it is warm.
class Prefetcher {
 public:
  /// kInvalidArgument: an option is out of range; all bad options are named at once.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> create(std::shared_ptr<const Dataset> dataset,
                                                            std::shared_ptr<const Sampler> sampler,
                                                            const PrefetcherOptions& options);
  /// The same with a sampler by value.
  template <class S>
  requires std::is_base_of_v<Sampler, S>
  static absl::StatusOr<std::unique_ptr<Prefetcher>> create(std::shared_ptr<const Dataset> dataset, S sampler,
                                                            const PrefetcherOptions& options) {
    return create(std::move(dataset), std::shared_ptr<const Sampler>(std::make_shared<S>(std::move(sampler))), options);
  }

  /// Returns within a second at any moment: a worker stuck in a read is detached with all that it uses kept alive.
  ~Prefetcher();

  /// The next batch; nullopt at the end of the epoch, after which the following call begins the next epoch.
  /// Blocks the caller until a batch is ready, at most `timeout`; never synchronises the device. Or:
  ///   kDataLoss          a row could not be read (on_error = kFail), or there were more than max_bad_samples; the
  ///                      message names the row and the cause. The rest of the batch is lost; next() may be called
  ///                      again.
  ///   kDeadlineExceeded  no batch within `timeout`; the message names the worker, the row and how long it has been
  ///   read.
  absl::StatusOr<std::optional<Batch>> next();

  /// Goes to the beginning of batch `batch` of `epoch` at once, leaving the present epoch early if need be. O(1).
  void seek(int64_t epoch, int64_t batch);

  /// Lets next() leave the tensors on `device`, as PrefetcherOptions::device does. false, with nothing changed, while
  /// batches are read.
  bool use_device(at::Device device);

  /// The epoch and the batch within it that next() returns next.
  int64_t epoch() const;
  int64_t position() const;
  int64_t batches_per_epoch() const;
  /// Whether no batch is left of the present epoch: next() returns nullopt next.
  bool at_epoch_end() const;

  const Dataset& dataset() const;
  const Sampler& sampler() const;
  const PrefetcherOptions& options() const;
  PrefetcherStats stats() const;
  /// Any thread; costs the workers nothing and the caller some microseconds for each of them.
  ReaderTimes reader_times() const;
  /// Every bad row once, in the order of the epoch in which it was met first.
  std::vector<BadSample> bad_samples() const;

  /// {"epoch", "rows" (position in rows of the whole epoch), "seed", "size", "digest"}: the place in the data and what
  /// it is a place in. The digest is of three rows, which the first call reads, and of the fields; empty if one is bad.
  /// load_state_dict refuses another dataset size or seed, or other rows with the same fields (exit code 5). Another
  /// batch_size, num_workers or number of ranks is accepted: the rows go on from the same position. The end of an epoch
  /// is the end of it for any of them.
  StateDict state_dict() const;
  absl::Status load_state_dict(const StateDict& state);

 private:
  class Impl;
  explicit Prefetcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
