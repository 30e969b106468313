#pragma once
// Notices that the process of another rank has ended.

#include <atomic>
#include <cstdint>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trainkit::detail {

// Note [Watching the next rank]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Ranks that replay CUDA graphs exchange messages between their devices only, and NCCL's kernels wait for a lost peer
// forever. Each rank therefore keeps a connection of Gloo to the next one, on which it waits for a message that is
// never sent: the wait ends when the operating system closes the connection of a process that has ended. That rank asks
// the others (FailureDetector), who learn the verdict.

/// Waits in a thread of its own for the end of the connection to rank `next`.
class PeerWatch {
 public:
  PeerWatch(c10::intrusive_ptr<c10d::Backend> gloo, int64_t next);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  bool has_ended() const { return has_ended_; }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<c10d::Work> receive_;
  std::atomic<bool> has_ended_ = false;
  std::thread thread_;
};

}  // namespace trainkit::detail
