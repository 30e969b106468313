// Loss of a rank while GPUs exchange gradients, on simulated devices and NCCL.
#include "../cuda_sim/cuda_sim_control.h"
#include "../ranks.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Runs two ranks; one does `scenario` at step 3. Returns the other's output without the lines of the simulated device.
std::string end_of_survivor(const std::string& scenario, int& code) {
  const TempDir folder;
  Ranks job("train_rank", 2, {"cuda_" + scenario, folder.path().string()}, folder.path().string());
  code = job.wait(0);
  std::istringstream errors(job.err(0));
  std::string text;
  for (std::string line; std::getline(errors, line);) {
    if (!line.starts_with("cuda_sim: ")) text += line + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("A rank whose peer is lost on a GPU reports the peer in one line", "[train][lost_rank_cuda][ranks]") {
  if (!has_cuda_sim()) TRAINKIT_SKIP("needs the simulated device");
  for (const std::string& scenario : std::vector<std::string>{"killed", "exits", "stopped", "throws"}) {
    int code = 0;
    const std::string text = end_of_survivor(scenario, code);
    INFO(scenario << ": " << text);
    CHECK(code == 8);
    CHECK_THAT(text, Catch::StartsWith("trainkit: error[dist.peer] rank 1 "));
    CHECK_THAT(text, Catch::Contains("at step 3"));
    CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  }
}
