#pragma once
/// Protection from SIGPIPE when writing to a pipe or socket whose other end may be closed.

#include <signal.h>
#include <time.h>

namespace trainkit::detail {

/// Blocks SIGPIPE for this thread and for threads that start during the object's lifetime: a write to a closed pipe
/// then fails with EPIPE and does not end the process. The program's own handling of the signal stays unchanged.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeBlocked() {
    sigset_t pending;
    sigpending(&pending);
    if (!was_pending_ && sigismember(&pending, SIGPIPE)) {
      const timespec now{};
      sigtimedwait(&pipe_, nullptr, &now);  // consumes the signal raised by this thread's write
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

}  // namespace trainkit::detail
