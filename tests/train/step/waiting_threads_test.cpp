#include "core/machine/waiting_threads.h"

#include <ATen/Parallel.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "read_text.h"
#include "test_util.h"
#include "train/batch_norm_net.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Threads of this process that watch for others.
int64_t watchers() {
  int64_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    count += read_text(thread.path() / "comm") == "trainkit-waits\n" ? 1 : 0;
  }
  return count;
}

/// Whether there are `count` of them soon: a thread names itself.
bool becomes(int64_t count) {
  for (int i = 0; i < 1000 && watchers() != count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return watchers() == count;
}

}  // namespace

// The first TrainStep of its process.
TEST_CASE(
    "The first step of a TrainStep starts to watch for other processes that need the processors, also without a "
    "Trainer",
    "[train][waiting_threads]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  unsetenv("OMP_WAIT_POLICY");  // libgomp has read it already
  unsetenv("GOMP_SPINCOUNT");
  at::set_num_threads(2);
  at::parallel_for(0, 4, 1, [](int64_t, int64_t) {});
  const auto devices = DeviceReplicator::create([] { return BatchNormNet(8); }, {.device = at::kCPU}).value();
  Adam adam({.lr = 1e-3}), other({.lr = 1e-3});
  TrainStep step(*devices, adam), second(*devices, other);
  CHECK(watchers() == 0);  // constructors start no threads
  for (TrainStep* one : {&step, &second, &step}) {
    one->accumulate(random_batch(4, 1), make_loss_function(loss_and_hits<BatchNormNet>));
    one->finish();
    CHECK(becomes(1));
  }
}
