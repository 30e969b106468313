#pragma once
// c10d objects of ProcessGroup, for the parts of the library that use c10d's own types.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "distributed/group/failure_detector.h"
#include "distributed/group/peer_watch.h"
#include "distributed/shared_memory/shared_memory.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {

class ProcessGroup::Impl {
 public:
  using Clock = std::chrono::steady_clock;

  Impl(const LaunchEnvironment& launch, ProcessGroupOptions options, c10::intrusive_ptr<c10d::Store> store);
  ~Impl();

  /// Connects the ranks; this one listens at `address`. Errors: exit code 8, which names a rank that has left.
  absl::Status connect(const std::string& address);

  /// Process group of the Reducer.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return c10d_; }
  /// Gloo for the CPU, NCCL for CUDA.
  c10d::Backend& backend(at::DeviceType type) const;
  c10d::Store& store() const { return *store_; }

  /// Moves the memory of a tensor on the CPU, with all its views, to where all_reduce needs no copy, if there is such a
  /// place.
  void share(const at::Tensor& tensor) {
    if (shared_memory_) shared_memory_->share(tensor);
  }
  /// Sums `tensor` over all ranks in place without waiting. Uses shared memory if possible, else backend().
  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor);
  /// The same for tensors with one part of equal size per rank (1-D): replaces this rank's part by its sum over all
  /// ranks, the other parts are then undefined; or replaces the parts of the other ranks by theirs.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(const at::Tensor& tensor);
  c10::intrusive_ptr<c10d::Work> all_gather(const at::Tensor& tensor);

  /// Connects the ranks once more with Gloo, for calls from another thread. Every rank calls it, any number of times.
  c10::intrusive_ptr<c10d::Backend> make_side_group();

  /// Waits for `work`, which began at `started`.
  absl::Status wait(const c10::intrusive_ptr<c10d::Work>& work, std::string_view what, Clock::time_point started);
  /// Returns the Error for a collective that failed with `message`. Asks the other ranks which of them is lost. Later
  /// calls return the first failure.
  absl::Status failure(std::string_view what, Clock::time_point started, std::string_view message);

  /// Notices a lost rank while no collective of the host waits for it. Every rank calls start_watch() at the same time,
  /// before the first check(). check() does not block; after a loss it returns the Error of `what`, which began at
  /// `started`.
  void start_watch();
  absl::Status check(std::string_view what, Clock::time_point started);

  /// While a CUDA graph is captured a failed collective is a failure of the capture, not of the group.
  void set_capturing(bool capturing) { is_capturing_ = capturing; }
  bool is_capturing() const { return is_capturing_; }

  /// Sets the current operation, which this rank reports to other ranks that ask.
  void at(std::string_view what);

  const int64_t rank;
  const int64_t world_size;
  const ProcessGroupOptions options;
  std::atomic<int64_t> step = 0;
  int64_t exchanges = 0;  // number of exchanges through the store; each uses separate keys
  detail::FailureDetector& failure_detector() { return *failure_detector_; }

 private:
  void make_backends();
  c10::intrusive_ptr<c10d::Backend> make_gloo(const std::string& prefix);
  at::Tensor own_part(const at::Tensor& tensor) const;

  std::string address_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<detail::FailureDetector> failure_detector_;
  std::unique_ptr<detail::SharedMemory> shared_memory_;  // or null
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<c10d::Backend> nccl_;
  c10::intrusive_ptr<c10d::ProcessGroup> c10d_;
  std::unique_ptr<detail::PeerWatch> watch_;  // or null
  std::optional<absl::Status> broken_;
  bool is_capturing_ = false;
};

namespace detail {

/// Sends `own`, of one size on all ranks, to all ranks of a side group, and returns theirs, as rows. Blocks. Throws an
/// Error of exit code 8 if a rank is lost.
at::Tensor exchange_on_host(c10d::Backend& side, const at::Tensor& own);

}  // namespace detail

}  // namespace trainkit
