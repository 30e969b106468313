#pragma once
/// Connects the ranks of a job and provides their collectives.

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
  /// Longest wait for the other ranks: to join, and in each collective.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  /// Listening address of our sockets: an address, a host name or a network interface of this machine. The loopback
  /// address serves ranks on this machine only. Traffic is neither encrypted nor authenticated: use a private network.
  std::string bind = "127.0.0.1";
  /// Device of the reduced tensors: the CPU (Gloo) or a GPU (NCCL, plus Gloo for host tensors).
  at::Device device = at::kCPU;
  /// Sum CPU tensors in shared memory instead of Gloo's sockets if all ranks (at most 8) are on this machine. The
  /// memory is anonymous, so nothing is left behind; at most 8 MiB per rank. Used if it is true on all ranks and their
  /// processes can see each other in one network namespace; otherwise Gloo is used.
  bool shared_memory = true;
};

/// One setting that must be equal on all ranks.
struct DigestField {
  std::string name;
  std::string value;
};

/// Represents this process among the ranks of a job; owns c10d's store and its Gloo or NCCL backend.
///
///   auto launch = read_launch_environment().value();          // torchrun, Slurm, Open MPI, trainkit launch
///   auto group = ProcessGroup::create(*launch, {.timeout = std::chrono::seconds(60)}).value();
///   group->compare_digest({{"batch_size", "32"}}).IgnoreError();
///   group->all_reduce(sum, "all_reduce(rows)").IgnoreError();
///
/// Every rank makes the same calls in the same order. If a rank is killed, stopped, or leaves, the calls of the other
/// ranks fail with an Error of exit code 8 that names the rank, the step and the collective:
///   error[dist.peer] rank 1 lost at step 1234 in allreduce(bucket 3) after 0.01 s: connection closed by peer
/// The error comes at once if a connection breaks, else at the timeout. To find the lost rank, each rank answers the
/// others through the store from a separate thread, independent of its main thread. After such an error the group
/// cannot be used.
///
/// Threads: one thread makes the calls; set_step and leave may be called from any thread.
class ProcessGroup {
 public:
  /// Connects to the other ranks. Blocks until all have joined. Errors of exit code 8:
  ///   dist.env   an address that cannot be bound or reached, a duplicate rank, a different WORLD_SIZE on another rank
  ///   dist.join  ranks that did not join within the timeout, by number
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> create(const LaunchEnvironment& launch,
                                                              const ProcessGroupOptions& options = {});
  /// Reports a regular exit to the other ranks, unless leave() was called.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t rank() const;
  int64_t world_size() const;
  const ProcessGroupOptions& options() const;

  /// Compares `fields` over all ranks through the store, with barriers. If a value differs or is missing, every rank
  /// gets the same error: exit code 8, dist.digest, with the field and the ranks whose value differs from rank 0's.
  absl::Status compare_digest(const std::vector<DigestField>& fields);

  /// Sums `tensor` over all ranks in place; every rank gets the same bits. For a CPU tensor, blocks the host until the
  /// sum is done; for a CUDA tensor, orders the work on the current stream. `what` names the call in error messages.
  absl::Status all_reduce(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// Takes the maximum of each element over all ranks in place, like all_reduce.
  absl::Status all_reduce_max(const at::Tensor& tensor, std::string_view what = "all_reduce");
  /// Overwrites `tensors` with those of `root`, 25 MiB at a time.
  absl::Status broadcast(const std::vector<at::Tensor>& tensors, int64_t root = 0, std::string_view what = "broadcast");
  /// Returns `text` of rank `root`, through the store, with a barrier.
  absl::StatusOr<std::string> broadcast_text(std::string text, int64_t root = 0, std::string_view what = "broadcast");
  /// Blocks until all ranks have called it. Uses the host's backend (Gloo).
  absl::Status barrier(std::string_view what = "barrier");

  /// Sets the step that error messages and answers to other ranks contain.
  void set_step(int64_t step);
  /// Reports to the other ranks why this rank leaves: their errors end with `reason`. Only the first call has an
  /// effect.
  void leave(std::string_view reason);
  /// Returns whether this rank may still make calls: false after leave() and after a lost rank.
  bool usable() const;

  class Impl;
  /// c10d objects, for the parts of the library that need them.
  Impl& impl() { return *impl_; }

 private:
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
