#pragma once
/// Writing to a pipe or socket whose other end may be gone.

#include <signal.h>
#include <time.h>

namespace trainkit::detail {

/// While one lives, such a write of this thread, and of threads that begin meanwhile, is an error (EPIPE) and not the
/// end of the process by SIGPIPE. What the program does with the signal otherwise stays as it is.
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
      sigtimedwait(&pipe_, nullptr, &now);  // takes back the signal that a write of this thread's raised
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
