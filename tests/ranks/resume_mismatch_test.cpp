// Ranks that would resume from different checkpoints.
#include "apps/text_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Ranks that find different checkpoints to resume from end with exit code 8, and nothing is written",
          "[ranks][resume]") {
  const Place place;
  const auto flags = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--save_every", "10", "--max_steps", "20", "--dist_timeout", "20s"});
    return place.flags("run", more);
  };
  RanksOptions job{.world = 2, .flags = flags({})};
  const auto trained = Ranks(job, place.dir.path().string()).wait();
  INFO(describe(trained));
  REQUIRE(trained[0].code == 0);
  const std::string run = place.dir / "run", metrics = read_text(run + "/metrics.jsonl");
  job.master_port = free_port();
  job.more = [&](int64_t rank) {
    return std::vector<std::string>{"--resume", run + "/checkpoints/step-000000" + (rank == 0 ? "20" : "10")};
  };
  const auto ends = Ranks(job, place.dir.path().string()).wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) {
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::Contains("step of the checkpoint: differs between ranks"));
  }
  CHECK(read_text(run + "/metrics.jsonl") == metrics);
  CHECK(read_text(run + "/checkpoints/latest") == "step-00000020\n");
}
