#include "core/machine/waiting_threads.h"

#include <ATen/Parallel.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/machine/block_signals.h"
#include "core/machine/parallel.h"
#include "core/machine/processor_times.h"

namespace trainkit::detail {
namespace {

// Note [Waiting threads]
//
// Between parallel regions and at their end, a thread of libgomp polls for about 3 ms before it sleeps
// (GOMP_SPINCOUNT). That saves the microseconds of a wake-up in each of the many short regions of a step: without it a
// small model takes twice as long. But if another process uses a processor, one thread of a team often has to wait for
// its processor; the others then poll and take the processors from it. On two processors with one other busy process, a
// step takes three times as long.
//
// So threads poll while nobody else wants the processors, and sleep while others do. libgomp polls 100 times only, a
// few microseconds, while the process has more OpenMP threads than processors. It counts the threads of all teams, also
// of teams without work. A team that makes the number large enough and never works is therefore started when others
// take processors that our threads wait for, and ended when they stop. DataParallel on the CPU keeps one: its replica
// threads need the processors as soon as the threads that updated the weights have no more work. The environment
// variables would do the same for the whole process, but libgomp reads them before main(). Source: libgomp of GCC 11 to
// 14, env.c and config/linux/wait.h.

constexpr std::chrono::milliseconds kInterval{250};
constexpr double kBusyOthers = 0.2, kLongWait = 0.1;     // sleep from here on
constexpr double kQuietOthers = 0.1, kShortWait = 0.05;  // poll again after kQuietIntervals below one of these
constexpr int kQuietIntervals = 8;

/// Returns how many idle threads make waiting threads sleep; 0 where they would change nothing.
int idle_threads() {
#ifdef __SANITIZE_THREAD__
  return 0;
#else
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return 0;
  const int threads = at::get_num_threads(), processors = openmp_processors();
  if (threads < 2 || processors == 0) return 0;
  // With many more processors than threads, a waiting thread takes nothing from others.
  constexpr int kMostIdle = 16;
  const int idle = std::max(processors - threads + 2, 2);
  return idle > kMostIdle ? 0 : idle;
#endif
}

void watch(int idle_threads) {
  pthread_setname_np(pthread_self(), "trainkit-waits");
  WaitingPolicy policy;
  std::optional<IdleTeam> team;
  ProcessorTimes before = processor_times();
  auto begin = std::chrono::steady_clock::now();
  for (;;) {
    std::this_thread::sleep_for(kInterval);
    const ProcessorTimes now = processor_times();
    const auto end = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(end - std::exchange(begin, end)).count();
    const bool sleeps = policy.update({.others = (now.others + now.stolen - before.others - before.stolen) / seconds,
                                       .waited = (now.waited - before.waited) / seconds});
    before = now;
    if (sleeps == team.has_value()) continue;
    sleeps ? static_cast<void>(team.emplace(idle_threads)) : team.reset();
  }
}

}  // namespace

bool WaitingPolicy::update(const ProcessorUse& use) {
  if (!sleeps_) {
    sleeps_ = use.others >= kBusyOthers && use.waited >= kLongWait;
    quiet_intervals_ = 0;
    return sleeps_;
  }
  const bool is_quiet = use.others < kQuietOthers || use.waited < kShortWait;
  quiet_intervals_ = is_quiet ? quiet_intervals_ + 1 : 0;
  sleeps_ = quiet_intervals_ < kQuietIntervals;
  return sleeps_;
}

IdleTeam::IdleTeam(int threads) {
  const BlockSignals blocked;
  owner_ = std::thread([this, threads] {
    run_idle_team(threads);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return is_over_; });
  });  // the team ends with the thread that made it
}

IdleTeam::~IdleTeam() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_all();
  owner_.join();
}

std::unique_ptr<IdleTeam> make_idle_team() {
  const int threads = idle_threads();
  return threads > 0 ? std::make_unique<IdleTeam>(threads) : nullptr;
}

void let_waiting_threads_sleep() {
  static std::atomic_flag has_started = ATOMIC_FLAG_INIT;
  const int threads = idle_threads();
  if (threads == 0 || has_started.test_and_set()) return;
  const BlockSignals blocked;
  std::thread(watch, threads).detach();
}

}  // namespace trainkit::detail
