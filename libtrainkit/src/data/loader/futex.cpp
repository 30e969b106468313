#include "data/loader/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace trainkit::detail {

void Futex::wait(uint32_t ticket, Clock::time_point deadline) {
  timespec until{};
  if (deadline != Clock::time_point::max()) {
    // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, the clock of steady_clock.
    const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
    until.tv_sec = nanoseconds / 1'000'000'000;
    until.tv_nsec = nanoseconds % 1'000'000'000;
  }
  syscall(SYS_futex, &word_, FUTEX_WAIT_BITSET_PRIVATE, ticket, deadline == Clock::time_point::max() ? nullptr : &until,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

void Futex::wake() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace trainkit::detail
