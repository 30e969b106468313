#pragma once
// Collectives through shared memory between ranks on one machine.

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

/// Sums tensors over ranks that are processes of one machine. Each rank writes its values where the others can read
/// them, and adds the values of all ranks in rank order, so that every rank gets the same bits. Each byte is written
/// once and read once per rank; a socket would copy it through the kernel twice in each direction, on cores that
/// backward needs. See Note [Shared-memory ring].
///
/// A worker thread processes the calls in their order, which must be equal on all ranks.
class SharedMemory {
 public:
  /// Maps the memory of all ranks; blocks until all have joined. Returns null on all ranks if any rank cannot or does
  /// not want to (`wanted`) share memory: several machines, network namespaces or users, more than 8 ranks, Linux
  /// before 5.3. Throws the exceptions of the store.
  static std::unique_ptr<SharedMemory> open(c10d::Store& store, int64_t rank, int64_t world_size, bool wanted,
                                            std::chrono::milliseconds timeout);
  /// Ends the thread and marks this rank as gone for the others.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Returns whether all_reduce supports `tensor`: float32 or float64, contiguous, on the CPU.
  static bool supports(const at::Tensor& tensor);

  /// Sums `tensor` over all ranks in place. Does not block. The work fails if a rank is gone (noticed within 20 ms),
  /// does not arrive within the timeout, or has a different number of bytes; all later work then fails too.
  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor);
  /// The same for a tensor with one part of equal size per rank: sums this rank's part, and leaves the others.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(const at::Tensor& tensor);
  /// Replaces the other ranks' parts by theirs: a contiguous CPU tensor of any dtype.
  c10::intrusive_ptr<c10d::Work> all_gather(const at::Tensor& tensor);

 private:
  using Clock = std::chrono::steady_clock;
  class RankMemory;
  enum class Operation { kAllReduce, kReduceScatter, kAllGather };
  /// A piece of a tensor, in the part of `owner`. An all-reduce has one part, of nobody.
  struct Piece {
    std::span<std::byte> bytes;
    size_t owner;
  };
  struct Call {
    Operation operation;
    at::Tensor tensor;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  SharedMemory(std::vector<std::unique_ptr<RankMemory>> ranks, int64_t rank, std::chrono::milliseconds timeout);
  void work();
  c10::intrusive_ptr<c10d::Work> start(Operation operation, const at::Tensor& tensor);
  void run(const Call& call);
  std::vector<Piece> pieces_of(const Call& call) const;
  bool may_write() const;
  void write(Operation operation, const Piece& piece);
  void read(const Call& call, const Piece& piece, Clock::time_point deadline);
  const std::byte* piece_of(size_t rank, size_t bytes, Clock::time_point deadline) const;
  template <class T>
  void add_up(std::span<T> piece, Clock::time_point deadline);
  void await(const std::atomic<uint32_t>& counter, uint32_t least, size_t rank, Clock::time_point deadline) const;

  const std::vector<std::unique_ptr<RankMemory>> ranks_;
  const size_t rank_;
  const std::chrono::milliseconds timeout_;

  // Used by the worker thread only.
  uint32_t written_ = 0;
  uint32_t read_ = 0;
  std::exception_ptr broken_;

  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Call> calls_;  // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace trainkit::detail
