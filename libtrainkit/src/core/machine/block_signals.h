#pragma once
// Keeps a program's signal handlers off the library's threads.

#include <pthread.h>
#include <signal.h>

namespace trainkit::detail {

/// Blocks the signals that programs handle while this object lives. Threads created meanwhile inherit the mask, so
/// handlers run on other threads.
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
