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

#include "distributed/shared_memory/rank_memory.h"

namespace trainkit::detail {

/// Sums tensors over ranks that are processes of one machine. Each rank adds the values of all ranks for its share of
/// the elements, in rank order, and writes the sums into the memory of all: every rank gets the same bits. Tensors in
/// shared memory (`share`) are not copied. See Note [Exchanges in shared memory].
///
/// A worker thread processes the calls in their order, which must be equal on all ranks.
class SharedMemory {
 public:
  /// Maps the memory of all ranks; blocks until all have joined. Returns null on all ranks if any rank cannot or does
  /// not want to (`wanted`) share memory: several machines, network namespaces or users, more than 64 ranks, Linux
  /// before 5.3. Throws the exceptions of the store.
  static std::unique_ptr<SharedMemory> open(c10d::Store& store, int64_t rank, int64_t world_size, bool wanted,
                                            std::chrono::milliseconds timeout);
  /// Ends the thread and marks this rank as gone for the others.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Moves the memory of a tensor, with all its views, to where the other ranks can read and write it, and keeps its
  /// values. Does nothing if there is no space. No thread uses the tensor meanwhile.
  void share(const at::Tensor& tensor);

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
  enum class Operation { kAllReduce, kReduceScatter, kAllGather };
  struct Call {
    Operation operation;
    at::Tensor tensor;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };
  /// Elements that the ranks exchange at once: the same ones of each part. An all-reduce has one part.
  struct Piece {
    const Call& call;
    std::byte* data;  // in the first part
    size_t bytes;     // in each part
    size_t parts;
    size_t part_stride;  // bytes from one part to the next
    Clock::time_point deadline;

    std::byte* part(size_t number) const { return data + number * part_stride; }
    bool is_small() const { return call.tensor.nbytes() <= RankMemory::kSlotBytes; }
  };

  SharedMemory(std::vector<std::shared_ptr<RankMemory>> ranks, int64_t rank, std::chrono::milliseconds timeout);
  void work();
  c10::intrusive_ptr<c10d::Work> start(Operation operation, const at::Tensor& tensor);
  void run(const Call& call);
  void exchange(const Piece& piece);
  std::byte* arrive(const Piece& piece);
  void await_arrivals(const Piece& piece) const;
  void finish(const Piece& piece);
  std::byte* part_of(size_t rank, size_t number) const;
  void all_reduce(const Piece& piece) const;
  void add_up(at::ScalarType type, size_t part, size_t begin, size_t bytes, std::span<std::byte* const> targets) const;
  template <class T>
  void add_up(size_t part, size_t begin, size_t bytes, std::span<std::byte* const> targets) const;
  using Counter = std::atomic<uint32_t> RankMemory::Head::*;
  using Meeting = RankMemory::Meeting RankMemory::Head::*;
  void meet(Counter own, Meeting meeting, uint32_t exchange) const;
  void await(Counter each, Meeting meeting, uint32_t exchange, Clock::time_point deadline) const;
  bool all_reached(Counter each, uint32_t exchange) const;

  const std::vector<std::shared_ptr<RankMemory>> ranks_;
  const size_t rank_;
  const std::chrono::milliseconds timeout_;

  // Used by the worker thread only.
  uint32_t arrived_ = 0;
  uint32_t finished_ = 0;
  std::exception_ptr broken_;

  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Call> calls_;  // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace trainkit::detail
