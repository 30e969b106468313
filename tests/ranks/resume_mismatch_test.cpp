// Ranks that would resume from different checkpoints.
#include "apps/transformer/text_place.h"
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
  const auto trained = RankJob(job, place.dir.path().string()).wait();
  INFO(describe(trained));
  REQUIRE(trained[0].code == 0);
  const std::string run = place.dir / "run", metrics = read_text(run + "/metrics.jsonl");
  job.master_port = free_port();
  job.more = [&](int64_t rank) {
    return std::vector<std::string>{"--resume", run + "/checkpoints/step-000000" + (rank == 0 ? "20" : "10")};
  };
  const auto ends = RankJob(job, place.dir.path().string()).wait();
  INFO(describe(ends));
  for (const RankEnd& end : ends) {
    CHECK(end.code == 8);
    CHECK_THAT(end.errors, Catch::Contains("step of the checkpoint: differs between ranks"));
  }
  CHECK(read_text(run + "/metrics.jsonl") == metrics);
  CHECK(read_text(run + "/checkpoints/latest") == "step-00000020\n");
}

TEST_CASE("Machines without a shared folder train together, and a resume that lacks the run's folder on one names it",
          "[ranks][resume]") {
  const Place place;
  RanksOptions job{.world = 2, .flags = place.flags("run", {"--dist_timeout", "20s"})};
  const auto folder = std::find(job.flags.begin(), job.flags.end(), place.dir / "run");
  REQUIRE(folder != job.flags.end());
  *folder = "run";
  job.wrapper = [&](int64_t rank) {
    const std::string machine = place.dir / ("machine" + std::to_string(rank));
    std::filesystem::create_directories(machine);
    return std::vector<std::string>{"/usr/bin/env", "-C", machine};
  };
  const std::vector<std::string> whole = {"--save_every", "10", "--max_steps", "20"};
  job.more = [&](int64_t) { return whole; };
  const auto trained = RankJob(job, place.dir.path().string()).wait();
  INFO(describe(trained));
  for (const RankEnd& end : trained) REQUIRE(end.code == 0);
  CHECK(std::filesystem::exists(place.dir / "machine0/run/checkpoints"));
  CHECK(!std::filesystem::exists(place.dir / "machine1/run/checkpoints"));

  job.master_port = free_port();
  job.flags = {"--output_dir", "run", "--resume", "latest", "--max_steps", "30", "--dist_timeout", "20s"};
  job.more = {};
  const auto resumed = RankJob(job, place.dir.path().string()).wait();
  INFO(describe(resumed));
  for (const RankEnd& end : resumed) CHECK(end.code != 0);
  CHECK_THAT(resumed[0].errors,
             Catch::Contains("step of the checkpoint: differs between ranks (got 'no checkpoint on rank 1'"));
}
