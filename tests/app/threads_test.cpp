// LibTorch's threads in a run.
#include <ATen/Parallel.h>

#include "test_util.h"
#include "trainkit/app/app.h"

using namespace trainkit;

TEST_CASE("--threads replaces the number that the loader leaves", "[app][threads]") {
  RunOptions run;
  const MachineInfo machine{.cpus = 2};
  const Placement placement;
  at::set_num_threads(2);
  run.num_workers = IntOrAuto{1};
  const int automatic = share_processors(run, placement, machine, ReadCost::kDecode);
  CHECK(automatic == std::max(1, std::min(2, available_cpus() - 1)));
  run.threads = IntOrAuto{3};
  CHECK(share_processors(run, placement, machine, ReadCost::kDecode) == 3);
  CHECK(at::get_num_threads() == 3);
}
