#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "trainkit/train/trainer.h"

namespace trainkit {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::atomic<bool> watching{false};
std::atomic<int> stop_requested{0};
std::atomic<bool> save_requested{false};
std::array<struct sigaction, kSignals.size()> previous;

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "signal handlers may touch lock-free atomics only");

// Note [Signal handler]
// ~~~~~~~~~~~~~~~~~~~~~
// The handler may interrupt any code, also code that holds the allocator's or stdio's lock. It therefore only touches
// lock-free atomics and calls _exit, which is async-signal-safe and runs no destructors. The first stop signal wins a
// compare-exchange from 0; a second one, also of the other kind, ends the process. SA_RESTART keeps system calls of the
// data loader from failing with EINTR.

/// See Note [Signal handler].
void on_signal(int number) {
  if (number == SIGHUP) number = SIGTERM;
  if (number == SIGUSR1) {
    save_requested = true;
  } else if (int none = 0; !stop_requested.compare_exchange_strong(none, number)) {
    _exit(128 + number);
  }
}

}  // namespace

SignalWatch::SignalWatch() {
  TORCH_CHECK(!watching.exchange(true), "only one SignalWatch may live at a time");
  stop_requested = 0;
  save_requested = false;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    const bool stays_ignored = kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;  // nohup
    if (!stays_ignored) sigaction(kSignals[i], &action, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  watching = false;
}

int SignalWatch::stop_signal() { return stop_requested.load(std::memory_order_relaxed); }

bool SignalWatch::take_save_request() {
  return save_requested.load(std::memory_order_relaxed) && save_requested.exchange(false);
}

}  // namespace trainkit
