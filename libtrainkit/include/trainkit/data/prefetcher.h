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
#include "trainkit/data/batch_source.h"
#include "trainkit/data/dataset.h"
#include "trainkit/data/sampler.h"

namespace trainkit {

/// What happens to a row that cannot be read.
enum class OnError {
  kFail,    ///< next() returns the error.
  kSkip,    ///< The row is skipped and the batch is shorter. An empty batch is skipped too. A distributed rank
            ///< (DistributedSampler) returns it empty, so that all ranks have the same number of batches.
  kReplace  ///< The next row of the order replaces it, so that batches stay full.
};

/// PyTorch's names and defaults (torch.utils.data.DataLoader, PyTorch 2.11).
struct PrefetcherOptions {
  /// Rows per batch on this rank. At least 1.
  int64_t batch_size = 1;
  /// Number of reader threads. 0 reads in the calling thread, which is the easiest to debug.
  int num_workers = 0;
  /// Batches that each worker keeps ready, 1 to 64, including the one that the consumer holds. Host memory is
  /// num_workers * prefetch_factor * bytes per batch, and at least two batches. If a batch takes only microseconds, use
  /// 8 or more: workers then claim up to half of their slots at once and wake the consumer once per claim.
  int prefetch_factor = 2;
  /// Raise prefetch_factor to 4 at the end of an epoch if the ring was too short: next() waited for more than a
  /// twentieth of the time, and the workers had idle time.
  bool adaptive_prefetch = false;
  /// Keep threads and memory between epochs.
  bool persistent_workers = false;
  /// Drop the last batch if it is not full.
  bool drop_last = false;
  /// Longest wait for a batch; zero means unlimited. Has no effect if the consumer reads (num_workers = 0).
  std::chrono::milliseconds timeout{0};
  /// Page-lock the batch memory, so that copies to a CUDA device overlap with computation. Always on if `device` is a
  /// CUDA device; has no effect without a CUDA device.
  bool pin_memory = false;
  /// Device of the tensors that next() returns. For a CUDA device, batches are copied ahead on a separate stream.
  at::Device device = at::kCPU;
  OnError on_error = OnError::kFail;
  /// Number of distinct bad rows above which next() fails, whatever on_error is; -1 means unlimited.
  int64_t max_bad_samples = -1;
};

/// A row that could not be read.
struct BadSample {
  int64_t index = 0;
  int64_t epoch = 0;
  std::string name = {};  ///< From Dataset::describe; may be empty.
  std::string cause = {};
};

/// Counters of a Prefetcher since its creation. Any thread may read them at any time.
struct PrefetcherStats {
  int64_t batches = 0;
  int64_t rows = 0;
  /// Time for which next() waited for a batch, including a wait in progress, and time between calls of next().
  double wait_seconds = 0;
  double consumer_seconds = 0;
  /// Longest single wait.
  double longest_wait_seconds = 0;
  /// Time that next() spent starting copies to the device; 0 on the CPU. The copies themselves run asynchronously.
  double copy_seconds = 0;
  /// Time workers spent in Dataset::get and get_batch, summed over the workers.
  double read_seconds = 0;
  /// Batches ready when next() was called, summed over the calls. Divide by `batches` for the mean queue depth.
  int64_t ready_batches = 0;
  /// Current number of batches that each worker keeps ready; see adaptive_prefetch.
  int prefetch_factor = 0;
  /// Allocations of batch memory so far; constant after warm-up.
  int64_t allocations = 0;

  /// Fraction of time that the consumer waited, 0 to 1.
  double wait_fraction() const {
    const double total = wait_seconds + consumer_seconds;
    return total > 0 ? wait_seconds / total : 0;
  }
};

/// Times of a Prefetcher's worker threads since its creation, summed over the threads. The rest of read_seconds is
/// storage wait.
struct ReaderTimes {
  /// Time on a processor.
  double cpu_seconds = 0;
  /// Time runnable but without a processor; 0 if the kernel does not report it (/proc/self/task/N/schedstat).
  double queued_seconds = 0;
};

/// Loads batches ahead of the training loop.
///
///   auto loader = Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 7}),
///                                    {.batch_size = 256, .num_workers = 4}).value();
///   while (auto batch = loader->next().value()) { step(*batch); }     // one epoch
///   while (auto batch = loader->next().value()) { step(*batch); }     // the next epoch
///
/// The batches are the same, bit for bit, for any num_workers. One thread calls next(); every worker calls the dataset.
/// Workers are threads, not processes. Batches use a ring of num_workers * prefetch_factor slots, which is reused: no
/// memory is allocated after warm-up.
class Prefetcher final : public BatchSource {
 public:
  /// Returns kInvalidArgument if options are out of range; the message names all of them.
  static absl::StatusOr<std::unique_ptr<Prefetcher>> create(std::shared_ptr<const Dataset> dataset,
                                                            std::shared_ptr<const Sampler> sampler,
                                                            const PrefetcherOptions& options);
  /// Same, with a sampler by value.
  template <class S>
  requires std::is_base_of_v<Sampler, S>
  static absl::StatusOr<std::unique_ptr<Prefetcher>> create(std::shared_ptr<const Dataset> dataset, S sampler,
                                                            const PrefetcherOptions& options) {
    return create(std::move(dataset), std::shared_ptr<const Sampler>(std::make_shared<S>(std::move(sampler))), options);
  }

  /// Returns within one second. A worker that is stuck in a read is detached; its slots and dataset stay alive.
  ~Prefetcher() override;

  /// Returns the next batch, or nullopt at the end of the epoch. The call after nullopt starts the next epoch.
  /// Blocks until a batch is ready, at most for `timeout`; never synchronises the device. Errors:
  ///   kDataLoss          a row could not be read (on_error = kFail), or more than max_bad_samples rows are bad. The
  ///                      message names the row and the cause. The rest of the batch is lost; next() may be called
  ///                      again.
  ///   kOutOfRange        the sampler returned an index outside [0, dataset().size()), with any on_error
  ///   kDeadlineExceeded  no batch was ready within `timeout`. The message names the worker, the row and the time
  ///                      since its read began.
  absl::StatusOr<std::optional<Batch>> next() override;
  /// As BatchSource::stop. A call of next() that waits for a worker returns within a tenth of a second; one that reads
  /// (num_workers = 0) finishes its batch first.
  void stop(absl::Status reason) override;

  /// Moves to the start of batch `batch` of `epoch`, abandoning the current epoch if necessary. O(1).
  void seek(int64_t epoch, int64_t batch);

  /// Copies batches ahead to the devices of a model's replicas, in their order. With one device, next() returns tensors
  /// on it, like PrefetcherOptions::device. With several CUDA devices it returns tensors on the CPU, and the copies of
  /// each replica's rows to its device have been started: Batch::shard. Returns false and changes nothing while batches
  /// are being read.
  bool use_devices(const std::vector<at::Device>& devices);

  /// Epoch, and batch within it, that next() will return; batches_per_epoch() at the end of the epoch.
  int64_t epoch() const override;
  int64_t position() const override;
  int64_t batches_per_epoch() const;
  std::optional<int64_t> epoch_length() const override { return batches_per_epoch(); }
  /// True if the current epoch has no batch left, so that next() returns nullopt.
  bool at_epoch_end() const;

  const std::vector<FieldSpec>& fields() const override { return dataset().fields(); }
  const Dataset& dataset() const;
  const Sampler& sampler() const;
  const PrefetcherOptions& options() const;
  PrefetcherStats stats() const;
  /// Callable from any thread. Does not slow the workers; the caller pays some microseconds per worker.
  ReaderTimes reader_times() const;
  /// Returns each bad row once, in the order of the epoch in which it was first met.
  std::vector<BadSample> bad_samples() const;

  /// State: {"epoch", "rows" (position in rows of the whole epoch), "seed", "size", "digest"}. The digest covers the
  /// fields and three rows, which the first call reads; it is empty if one of the rows is bad.
  ///
  /// load_state_dict rejects another dataset size, another seed or other rows with the same fields (exit code 5). It
  /// accepts another batch_size, num_workers or number of ranks: reading resumes at the same row position. The end of
  /// an epoch stays the end of that epoch.
  StateDict state_dict() const override;
  absl::Status load_state_dict(const StateDict& state) override;

 private:
  class Impl;
  explicit Prefetcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
