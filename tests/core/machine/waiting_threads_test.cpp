// Threads of LibTorch that wait while other processes need the processors.
#include "core/machine/waiting_threads.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <thread>

#include "core/machine/other_load.h"
#include "core/machine/parallel.h"
#include "test_util.h"
#include "thread_count.h"
#include "trainkit/core/processors.h"

using namespace trainkit;
using namespace trainkit::detail;

TEST_CASE("Threads sleep from the first interval with contention until two quiet seconds have passed",
          "[core][waiting_threads]") {
  WaitingPolicy policy;
  constexpr ProcessorUse kAlone{.others = 0.02, .waited = 0.01}, kContended{.others = 0.9, .waited = 0.6};
  constexpr ProcessorUse kNeighbours{.others = 30, .waited = 0.01};  // on processors that this process does not need
  CHECK(!policy.update(kAlone));
  CHECK(!policy.update(kNeighbours));
  CHECK(!policy.update({.others = 0.05, .waited = 0.5}));  // its own threads compete with each other
  CHECK(policy.update(kContended));
  CHECK(policy.update({.others = 0.5, .waited = 0.05}));
  for (const ProcessorUse& quiet : {kAlone, kNeighbours}) {
    for (int i = 0; i < 7; ++i) CHECK(policy.update(quiet));
    CHECK(policy.update(kContended));
    for (int i = 0; i < 7; ++i) CHECK(policy.update(quiet));
    CHECK(!policy.update(quiet));
    CHECK(policy.update(kContended));
  }
}

// The only test of its process that starts the watching thread, which never ends.
TEST_CASE("An idle team of OpenMP threads exists while other processes need the processors",
          "[core][waiting_threads]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  unsetenv("OMP_WAIT_POLICY");  // libgomp has read it already
  unsetenv("GOMP_SPINCOUNT");
  at::set_num_threads(1);
  const auto alone = test::settled_thread_count();
  let_waiting_threads_sleep();  // one thread never waits
  CHECK(!make_idle_team());
  CHECK(test::thread_count() == alone);
  at::set_num_threads(2);
  parallel_for(0, 4, 1, [](int64_t, int64_t) {});
  const auto before = test::settled_thread_count();
  {
    const auto team = make_idle_team();
    REQUIRE(team);
    while (test::thread_count() < before + 2) std::this_thread::yield();
  }
  while (test::thread_count() > before) std::this_thread::yield();  // its members end after their owner
  let_waiting_threads_sleep();
  let_waiting_threads_sleep();
  CHECK(test::thread_count() == before + 1);
  {
    const test::OtherLoad load(2 * available_cpus());
    while (test::thread_count() < before + 3) continue;  // waits for a processor now and then
  }
  while (test::thread_count() > before + 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
}
