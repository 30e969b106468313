#pragma once
/// The ranks of a job, and what they do together.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/distributed/launch_environment.h"

namespace trainkit {

struct ProcessGroupOptions {
  /// Longest wait for the other ranks: until they have joined, and in each collective.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  /// What our sockets listen on: an address, a host name or a network interface of this machine. The loopback reaches
  /// the ranks on this machine alone. Traffic is neither encrypted nor authenticated: name a private network.
  std::string bind = "127.0.0.1";
  /// The device whose tensors are reduced: the CPU (Gloo) or a GPU (NCCL, with Gloo beside it for the host's numbers).
  at::Device device = at::kCPU;
  /// Ranks that are all on this machine (up to 8) sum CPU tensors in memory that they share, not over Gloo's sockets.
  /// The memory has no name, so that nothing is left behind; 8 MiB a rank at most. Used if it is true on all ranks and
  /// their processes can see each other, in the same network namespace; else Gloo.
  bool shared_memory = true;
};

/// One line of what ranks must have alike.
struct DigestField {
  std::string name;
  std::string value;
};

/// This process among the ranks of a job: c10d's store, and Gloo or NCCL, owned and explained.
///
///   auto launch = read_launch_environment().value();          // torchrun, Slurm, Open MPI, trainkit launch
///   auto group = ProcessGroup::create(*launch, {.timeout = std::chrono::seconds(60)}).value();
///   group->compare_digest({{"batch_size", "32"}}).IgnoreError();
///   group->all_reduce(sum, "all_reduce(rows)").IgnoreError();
///
/// Every rank makes the same calls in the same order. A rank that is killed, stopped, or leaves makes the calls of the
/// others fail with an Error of exit code 8 that names it, the step and the collective:
///   error[dist.peer] rank 1 lost at step 1234 in allreduce(bucket 3) after 0.01 s: connection closed by peer
/// at once where a connection breaks, else at the timeout. To find the rank, the ranks answer one another through the
/// store from a thread of their own, whatever the main thread does. After such an error the group is of no use.
///
/// One thread calls; set_step and leave may be called from any.
class ProcessGroup {
 public:
  /// Meets the other ranks. Blocks until all have joined. Errors of exit code 8:
  ///   dist.env   an address that cannot be bound or reached, a rank that is there twice, another WORLD_SIZE elsewhere
  ///   dist.join  ranks that did not join within the timeout, named
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> create(const LaunchEnvironment& launch,
                                                              const ProcessGroupOptions& options = {});
  /// Tells the others that this rank has left in good order, unless leave() was called.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t rank() const;
  int64_t world_size() const;
  const ProcessGroupOptions& options() const;

  /// Compares `fields` over all ranks through the store, without a collective. If a value differs or is missing, every
  /// rank gets the same error: exit code 8, dist.digest, with the field, and the ranks with another value than rank 0.
  absl::Status compare_digest(const std::vector<DigestField>& fields);

  /// Sums `tensor` over all ranks, in place; every rank gets the same bits. A CPU tensor blocks the host until it is
  /// done; a CUDA tensor is ordered on the current stream. `what` is for messages.
  absl::Status all_reduce(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// The largest of each element, likewise.
  absl::Status all_reduce_max(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// Overwrites `tensors` with those of `root`, 25 MiB at a time.
  absl::Status broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0, std::string_view what = "broadcast");
  /// `text` of rank `root`, through the store.
  absl::StatusOr<std::string> broadcast_text(std::string text, int64_t root = 0, std::string_view what = "broadcast");
  /// Returns when all ranks have called it; through the store, so that it cannot fail in a collective of others.
  absl::Status barrier(std::string_view what = "barrier");

  /// The step that messages name, and that this rank tells the others when they ask.
  void set_step(int64_t step);
  /// Tells the others why this rank leaves: their errors end with `reason`. The first call counts.
  void leave(std::string_view reason);
  /// Whether this rank may still make calls: false after leave() and after a lost rank.
  bool usable() const;

  class Impl;
  /// For the parts of the library that need c10d itself.
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
