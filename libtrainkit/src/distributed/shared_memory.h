#pragma once
// Sums over ranks of one machine, through memory that they share.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace trainkit::detail {

/// The all-reduce of ranks that are processes of one machine. Each writes its numbers where the others can read them,
/// and adds up those of all in the order of the ranks, so that every rank gets the same bits, those of one process that
/// adds them in turn. A byte is written once and read once by every rank; over sockets it passes the kernel twice each
/// way, on processors that the backward pass needs.
///
/// A rank shows 8 MiB in pieces, a ring that a sum of any size goes through. A thread of its own works off the sums in
/// the order in which they were asked for, which must be the same on all ranks.
class SharedMemory {
 public:
  /// Opens the memory of all ranks; blocks until all have come. Null, on all of them alike, where one of them cannot
  /// or does not want to (`wanted`): on several machines or in several network namespaces, as somebody else's
  /// processes, more than 8 ranks, Linux before 5.3. Throws what the store throws.
  static std::unique_ptr<SharedMemory> open(c10d::Store& store, int64_t rank, int64_t world_size, bool wanted,
                                            std::chrono::milliseconds timeout);
  /// Ends the thread. The others learn that this rank is gone.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Whether all_reduce takes `tensor`: float32 or float64, contiguous, on the CPU.
  static bool takes(const at::Tensor& tensor);

  /// Sums `tensor` over all ranks in place. Does not block. The work fails where a rank is gone (noticed within 20 ms),
  /// does not come within the timeout, or comes with another number of bytes; after that all fail.
  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor);

 private:
  using Clock = std::chrono::steady_clock;
  class Shown;
  struct Sum {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  SharedMemory(std::vector<std::unique_ptr<Shown>> ranks, int64_t rank, std::chrono::milliseconds timeout);
  void work();
  void sum(const at::Tensor& tensor);
  bool may_write() const;
  void write(std::span<const std::byte> piece);
  template <class T>
  void add_up(std::span<T> piece, Clock::time_point deadline);
  void await(const std::atomic<uint32_t>& counter, uint32_t least, size_t rank, Clock::time_point deadline) const;

  const std::vector<std::unique_ptr<Shown>> ranks_;
  const size_t rank_;
  const std::chrono::milliseconds timeout_;

  // The thread's own.
  uint32_t written_ = 0;
  uint32_t read_ = 0;
  std::exception_ptr broken_;

  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Sum> sums_;  // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace trainkit::detail
