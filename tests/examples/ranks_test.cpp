// The fine-tuning example on two ranks.
#include "ranks/ranks.h"

#include "examples/example_runs.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

RanksOptions two_ranks(const std::string& folder) { return {.program = "example_fine_tune", .flags = {folder}}; }

}  // namespace

TEST_CASE("Fine-tuning on two ranks, killed before the encoder is trained, has the same bits", "[examples][ranks]") {
  constexpr int64_t kThaw = 40, kSteps = 480;  // an epoch, and the whole run
  const TempDir dir;
  const std::string output = dir.path().string();
  const std::vector<RankEnd> ends = RankJob(two_ranks(dir / "whole"), output).wait();
  require_done(ends);
  CHECK(steps_of_start(ends[0].output) == kSteps);
  REQUIRE(last_saved(dir / "whole") == kSteps);

  // Two replicas in one process and two ranks have the same rows in each step.
  REQUIRE(run_to_end("example_fine_tune", {dir / "replicas"}, output).code == 0);
  const std::string name = "/checkpoints/" + latest(dir / "whole") + "/model.safetensors";
  const auto ranks = SafetensorsFile::open(dir / ("whole" + name)).value();
  const auto replicas = SafetensorsFile::open(dir / ("replicas" + name)).value();
  const auto largest = [&](const std::string& tensor) {
    return (ranks.tensor(tensor).value() - replicas.tensor(tensor).value()).abs().max().item<double>();
  };
  CHECK(largest("head.weight") < 1e-3);
  CHECK(largest("encoder.0.weight") < 1e-3);

  int64_t saved = kThaw;
  std::string folder;
  for (int attempt = 0; saved >= kThaw; ++attempt) {
    REQUIRE(attempt < 50);
    folder = dir / ("killed" + std::to_string(attempt));
    RankJob(two_ranks(folder), output).kill_after_checkpoint(folder);
    saved = last_saved(folder);
  }
  const std::vector<RankEnd> resumed = RankJob(two_ranks(folder), output).wait();
  require_done(resumed);
  CHECK(steps_of_start(resumed[0].output) == kSteps - saved);
  CHECK(final_bytes(folder) == final_bytes(dir / "whole"));
}
