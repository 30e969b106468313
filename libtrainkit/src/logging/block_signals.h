#pragma once
// For threads of the library, on which a program's signal handlers must not run.

#include <pthread.h>
#include <signal.h>

namespace trainkit::detail {

/// Blocks the signals that programs handle while it lives: threads made meanwhile inherit that, so handlers run
/// elsewhere.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t set;
    sigfillset(&set);
    for (int synchronous : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&set, synchronous);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace trainkit::detail
