// Parallel loops keep a thread's number of LibTorch threads.
#include <thread>

#include "core/machine/parallel.h"
#include "test_util.h"

using namespace trainkit;

TEST_CASE("A parallel loop keeps the number of threads of its thread, whatever other threads have set") {
  const int before = at::get_num_threads();
  int counted = 0;
  std::thread([&] {
    at::set_num_threads(3);
    (void)at::get_num_threads();                         // LibTorch initialises the thread
    std::thread([] { at::set_num_threads(1); }).join();  // as the replicas of DataParallel on the CPU do
    trainkit::detail::parallel_for(0, 64, 1, [](int64_t, int64_t) {});
    counted = at::get_num_threads();
  }).join();
  at::set_num_threads(before);
  CHECK(counted == 3);
}
