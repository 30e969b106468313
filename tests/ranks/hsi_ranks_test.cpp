// trainkit-hsi on several devices: the same training as on one, resumed with the same bits, each pixel scored once.
#include <nlohmann/json.hpp>

#include "apps/hsi/hsi_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// `world` ranks; 0: one process without a launcher.
RanksOptions job_of(const HsiPlace& place, const std::string& name, int64_t world,
                    const std::vector<std::string>& more) {
  return {.world = std::max<int64_t>(world, 1),
          .program = "trainkit-hsi",
          .launched = world > 0,
          .flags = place.flags(name, more)};
}

std::vector<RankEnd> run(const HsiPlace& place, const std::string& name, int64_t world,
                         const std::vector<std::string>& more) {
  return RankJob(job_of(place, name, world, more), place.dir.path().string()).wait();
}

nlohmann::json scores_of(const HsiPlace& place, const std::string& name) {
  return nlohmann::json::parse(read_text(place.dir / name + "/results/scores.json"));
}

int64_t rows_of(const nlohmann::json& scores) {
  int64_t rows = 0;
  for (const auto& row : scores.at("confusion")) {
    for (const auto& count : row) rows += count.get<int64_t>();
  }
  return rows;
}

}  // namespace

TEST_CASE("dp and ddp of trainkit-hsi train and score as one device with the same global batch", "[ranks][hsi]") {
  const HsiPlace place;
  const std::vector<std::string> flags = {"--global_batch_size", "8", "--epochs", "3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  require_done(run(place, "single", 0, flags));
  const auto expected = losses(place.dir / "single");
  const auto scores = scores_of(place, "single");
  const auto check_same = [&](const std::string& name) {
    INFO(name);
    const auto logged = losses(place.dir / name);
    REQUIRE(logged.size() == expected.size());
    for (size_t i = 0; i < logged.size(); ++i) {
      CHECK(logged[i].step == expected[i].step);
      CHECK(logged[i].split == expected[i].split);
      if (logged[i].split != "test") CHECK(logged[i].loss == Approx(expected[i].loss).epsilon(2e-3).margin(1e-4));
    }
    // Each pixel once, although ranks may repeat pixels to have equally many.
    CHECK(rows_of(scores_of(place, name)) == rows_of(scores));
    CHECK(scores_of(place, name).at("oa").get<double>() == Approx(scores.at("oa").get<double>()).margin(0.01));
    CHECK(scores_of(place, name).at("leak") == scores.at("leak"));
  };
  const auto dp = run(place, "dp", 0, with({"--parallel", "2"}));
  require_done(dp);
  CHECK_THAT(dp[0].output, Catch::Contains("dp on cpu, 2 logical replicas") &&
                               Catch::Contains("4 per device x 2 devices x 1 accumulated = 8 per step"));
  check_same("dp");
  for (const int64_t world : {1, 2, 4}) {
    const std::string name = "ddp" + std::to_string(world);
    const auto ends = run(place, name, world, flags);
    require_done(ends);
    for (size_t rank = 1; rank < ends.size(); ++rank) CHECK(ends[rank].output.empty());
    for (const RankEnd& end : ends) CHECK(end.errors.empty());
    check_same(name);
  }
  // A run resumed on other devices keeps its global batch.
  const auto ends = run(place, "single", 4, {"--epochs", "4", "--resume", "latest"});
  require_done(ends);
  CHECK_THAT(ends[0].output, Catch::Contains("2 per device x 4 devices x 1 accumulated = 8 per step"));
}

TEST_CASE("All ranks together classify the whole scene, and repeats run on ranks too", "[ranks][hsi]") {
  const HsiPlace place;
  const std::vector<std::string> flags = {"--epochs", "1", "--repeats", "2"};
  require_done(run(place, "two", 2, flags));
  for (const std::string repeat : {"two/repeat-1", "two/repeat-2"}) {
    CHECK(std::filesystem::exists(place.dir / repeat + "/results/classification.png"));
    CHECK(rows_of(scores_of(place, repeat)) > 0);
  }
  CHECK(nlohmann::json::parse(read_text(place.dir / "two" + "/summary.json")).at("repeats") == 2);
}

TEST_CASE("A run of trainkit-hsi on several devices that is killed and resumed has the bits of an uninterrupted run",
          "[ranks][hsi][resume]") {
  for (const int64_t world : {0, 2}) {
    const HsiPlace place;
    std::vector<std::string> flags = {"--max_steps", "30", "--epochs", "9", "--eval_every", "13"};
    if (world == 0) flags.insert(flags.end(), {"--parallel", "2"});
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      return more;
    };
    require_done(run(place, "whole", world, with({"--save_every", "30"})));
    const std::string expected = checkpoint_bytes(place.dir / "whole", "00000030");
    for (const std::string save_every : {"4", "21"}) {
      const std::string name = "killed" + save_every;
      RankJob(job_of(place, name, world, with({"--save_every", save_every})), place.dir.path().string())
          .kill_after_checkpoint(place.dir / name);
      require_done(run(place, name, world, with({"--save_every", "30", "--resume", "latest"})));
      INFO(world << " ranks, killed after step " << save_every);
      CHECK(checkpoint_bytes(place.dir / name, "00000030") == expected);
      CHECK(losses(place.dir / name) == losses(place.dir / "whole"));
    }
  }
}

TEST_CASE("Ranks of trainkit-hsi with different settings report the setting", "[ranks][hsi]") {
  const HsiPlace place;
  struct Mismatch {
    std::string flag, value, text;
  };
  for (const auto& [flag, value, text] : {Mismatch{"--train_ratio", "0.2", "train_ratio: differs between ranks"},
                                          Mismatch{"--model", "mlp", "model: differs between ranks"}}) {
    RanksOptions job{.world = 2, .program = "trainkit-hsi"};
    job.more = [&, &flag = flag, &value = value](int64_t rank) {
      auto all = place.flags("unused", {"--dist_timeout", "20s"});
      if (rank == 1) *(std::find(all.begin(), all.end(), flag) + 1) = value;
      return all;
    };
    const auto ends = RankJob(job, place.dir.path().string()).wait();
    INFO(describe(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.code == 8);
      CHECK_THAT(end.errors, Catch::Contains("error[dist.digest] ") && Catch::Contains(text));
    }
  }
}
