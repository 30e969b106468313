// Loss of a rank while GPUs exchange gradients, on simulated devices and NCCL.
#include "cuda_sim/cuda_sim_control.h"
#include "ranks.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

struct End {
  int code = 0;
  std::string errors;  // without the lines of the simulated device
};

/// Runs two ranks; the second does `scenario` at step 3. Returns the end of `rank`.
End end_of(int rank, const std::string& scenario) {
  const TempDir folder;
  Ranks job("train_rank", 2, {"cuda_" + scenario, folder.path().string()}, folder.path().string());
  End end{job.wait(rank), {}};
  std::istringstream errors(job.err(rank));
  for (std::string line; std::getline(errors, line);) {
    if (!line.starts_with("cuda_sim: ")) end.errors += line + "\n";
  }
  return end;
}

}  // namespace

TEST_CASE("A rank whose peer is lost on a GPU reports the peer in one line", "[train][lost_rank_cuda][ranks]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  for (const std::string& scenario : std::vector<std::string>{"killed", "exits", "stopped", "throws"}) {
    const End end = end_of(0, scenario);
    INFO(scenario << ": " << end.errors);
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::StartsWith("trainkit: error[dist.peer] rank 1 "));
    CHECK_THAT(end.errors, Catch::Contains("at step 3"));
    CHECK(std::count(end.errors.begin(), end.errors.end(), '\n') == 1);
  }
}

TEST_CASE("A rank whose GPU fails reports its device, though NCCL's watchdog sees the failure first",
          "[train][lost_rank_cuda][ranks]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  const End end = end_of(1, "device_fails");
  INFO(end.errors);
  CHECK(end.code == 11);
  CHECK_THAT(end.errors,
             Catch::StartsWith("trainkit: error[device.failed] cuda:1: an illegal memory access was encountered"));
}
