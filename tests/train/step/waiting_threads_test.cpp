#include "core/machine/waiting_threads.h"

#include <ATen/Parallel.h>

#include "test_util.h"
#include "thread_count.h"
#include "train/batch_norm_net.h"
#include "trainkit/distributed/device_replicator.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

// The first TrainStep of its process.
TEST_CASE("A TrainStep watches for other processes that need the processors, also without a Trainer",
          "[train][waiting_threads]") {
#if defined(__SANITIZE_THREAD__)
  TRAINKIT_SKIP("ThreadSanitizer does not see OpenMP's synchronisation: kernels run on one thread");
#endif
  unsetenv("OMP_WAIT_POLICY");  // libgomp has read it already
  unsetenv("GOMP_SPINCOUNT");
  at::set_num_threads(2);
  at::parallel_for(0, 4, 1, [](int64_t, int64_t) {});
  const auto devices = DeviceReplicator::create([] { return BatchNormNet(8); }, {.device = at::kCPU}).value();
  Adam adam({.lr = 1e-3});
  const auto before = thread_count();
  const TrainStep step(*devices, adam);
  CHECK(thread_count() == before + 1);
  Adam other({.lr = 1e-3});
  const TrainStep second(*devices, other);
  CHECK(thread_count() == before + 1);
}
