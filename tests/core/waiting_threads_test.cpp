// Threads of LibTorch that wait. The only test of its process, because the first call starts threads.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>

#include <filesystem>
#include <thread>

#include "core/parallel.h"
#include "test_util.h"

using namespace trainkit;

TEST_CASE("An idle team is started once, so that the OpenMP runtime lets waiting threads sleep", "[core][parallel]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  if (!test::environment("OMP_WAIT_POLICY").empty()) unsetenv("OMP_WAIT_POLICY");  // libgomp has read it already
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  const auto sum = [] {
    int64_t parts[4] = {};
    trainkit::detail::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) parts[i] = i + 1;
    });
    return parts[0] + parts[1] + parts[2] + parts[3];
  };
  at::set_num_threads(1);
  const auto alone = threads();
  trainkit::detail::let_waiting_threads_sleep();  // one thread never waits
  CHECK(threads() == alone);
  at::set_num_threads(2);
  CHECK(sum() == 10);
  const auto before = threads();
  trainkit::detail::let_waiting_threads_sleep();
  while (threads() < before + 2) std::this_thread::yield();
  const auto after = threads();
  trainkit::detail::let_waiting_threads_sleep();
  CHECK(sum() == 10);
  CHECK(threads() == after);
}
