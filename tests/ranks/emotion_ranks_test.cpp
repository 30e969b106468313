// trainkit-emotion on several devices: the same training as on one, resumed with the same bits, each clip scored once.
#include <fstream>

#include "apps/emotion/emotion_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// `world` ranks; 0: one process without a launcher. Audio only, which takes a few milliseconds per step.
RanksOptions job_of(const EmotionPlace& place, const std::string& name, int64_t world,
                    const std::vector<std::string>& more, bool sound = true) {
  return {.world = std::max<int64_t>(world, 1),
          .program = "trainkit-emotion",
          .launched = world > 0,
          .flags = place.flags(name, more, sound)};
}

std::vector<RankEnd> run(const EmotionPlace& place, const std::string& name, int64_t world,
                         const std::vector<std::string>& more, bool sound = true) {
  return RankJob(job_of(place, name, world, more, sound), place.dir.path().string()).wait();
}

std::vector<std::string> with(std::vector<std::string> more, const std::vector<std::string>& flags) {
  more.insert(more.end(), flags.begin(), flags.end());
  return more;
}

void check_near(const std::vector<Loss>& logged, const std::vector<Loss>& expected) {
  REQUIRE(logged.size() == expected.size());
  for (size_t i = 0; i < logged.size(); ++i) {
    INFO(logged[i] << " against " << expected[i]);
    CHECK(logged[i].step == expected[i].step);
    CHECK(logged[i].split == expected[i].split);
    CHECK(logged[i].loss == Approx(expected[i].loss).epsilon(2e-3).margin(1e-4));
  }
}

}  // namespace

TEST_CASE("dp and ddp of trainkit-emotion train and score as one device with the same global batch",
          "[ranks][emotion]") {
  const EmotionPlace place;
  const std::vector<std::string> flags = {"--global_batch_size", "14", "--batch_size", "auto", "--epochs", "2",
                                          "--dropout",           "0",  "--log_every",  "1"};
  require_done(run(place, "single", 0, flags));
  const auto expected = losses(place.dir / "single");
  const auto check_same = [&](const std::string& name) {
    INFO(name);
    check_near(losses(place.dir / name), expected);
    CHECK(scored_clips(place.dir / name) == 14);
  };
  const auto dp = run(place, "dp", 0, with({"--parallel", "2"}, flags));
  require_done(dp);
  CHECK_THAT(dp[0].output, Catch::Contains("dp on cpu, 2 logical replicas") &&
                               Catch::Contains("7 per device x 2 devices x 1 accumulated = 14 per step") &&
                               Catch::Contains("monitor: utilisation "));
  check_same("dp");
  const auto ends = run(place, "ddp", 2, flags);
  require_done(ends);
  CHECK(ends[1].output.empty());
  for (const RankEnd& end : ends) CHECK(end.errors.empty());
  CHECK_THAT(ends[0].output, Catch::Contains("monitor: utilisation "));
  check_same("ddp");
}

TEST_CASE("A run of trainkit-emotion resumes with one rank, two ranks and one again, and reads the same rows",
          "[ranks][emotion][resume]") {
  const EmotionPlace place;
  const std::vector<std::string> flags = {"--batch_size", "14", "--epochs",    "3",       "--dropout", "0",
                                          "--log_every",  "1",  "--scheduler", "constant"};
  require_done(run(place, "whole", 1, flags));
  // 42 clips are 3 steps per epoch.
  require_done(run(place, "moved", 1, with({"--max_steps", "3"}, flags)));
  const auto two = run(place, "moved", 2, with({"--max_steps", "6", "--resume", "latest"}, flags));
  require_done(two);
  CHECK_THAT(two[0].output, Catch::Contains("7 per device x 2 devices x 1 accumulated = 14 per step"));
  require_done(run(place, "moved", 1, with({"--resume", "latest", "--max_steps", "0"}, flags)));
  const auto only_training = [&](const std::string& name) {
    std::vector<Loss> list = losses(place.dir / name);
    std::erase_if(list, [](const Loss& loss) { return loss.split != "train"; });
    return list;
  };
  check_near(only_training("moved"), only_training("whole"));
  CHECK(scored_clips(place.dir / "moved") == 14);
}

TEST_CASE("A run of trainkit-emotion that is killed and resumed has the bits of an uninterrupted run",
          "[ranks][emotion][resume]") {
  struct Way {
    int64_t world;
    std::string workers;
  };
  for (const Way& way : {Way{0, "2"}, Way{2, "1"}}) {
    const EmotionPlace place;
    const std::vector<std::string> flags = {"--batch_size",  "7",         "--max_steps", "9",  "--epochs", "9",
                                            "--num_workers", way.workers, "--ema",       "0.9"};
    require_done(run(place, "whole", way.world, with({"--save_every", "9"}, flags)));
    const std::string expected = checkpoint_bytes(place.dir / "whole", "00000009");
    RankJob(job_of(place, "killed", way.world, with({"--save_every", "3"}, flags)), place.dir.path().string())
        .kill_after_checkpoint(place.dir / "killed");
    require_done(run(place, "killed", way.world, with({"--save_every", "9", "--resume", "latest"}, flags)));
    INFO(way.world << " ranks, " << way.workers << " workers");
    CHECK(checkpoint_bytes(place.dir / "killed", "00000009") == expected);
    CHECK(losses(place.dir / "killed") == losses(place.dir / "whole"));
  }
}

TEST_CASE("Ranks of trainkit-emotion fill one cache of clips: one decodes, the other reads them",
          "[ranks][emotion][cache]") {
  const EmotionPlace place;
  std::ofstream(place.data + "/train_splits/dia0_utt2.mp4") << "no clip";
  const std::vector<std::string> flags = {"--batch_size", "7", "--epochs", "2", "--log_every", "1"};
  require_done(run(place, "decoded", 2, flags, /*sound=*/false));
  const auto ends = run(place, "cached", 2, with({"--cache_dir", place.dir / "cache"}, flags), /*sound=*/false);
  require_done(ends);
  CHECK_THAT(ends[0].output, Catch::Contains("train: 41 clips decoded") && Catch::Contains("1 cannot be read"));
  CHECK(ends[1].output.empty());
  CHECK(losses(place.dir / "cached") == losses(place.dir / "decoded"));
  CHECK(read_text(place.dir / "cached" + "/bad_samples.csv") == read_text(place.dir / "decoded" + "/bad_samples.csv"));
  CHECK(scored_clips(place.dir / "cached") == 14);
}

TEST_CASE("A rank that can read no validation clip evaluates with the others, and bad clips are listed once",
          "[ranks][emotion]") {
  const EmotionPlace place;
  for (const int clip : {0, 1, 3, 5})  // those of rank 1, and the first one, which pads its share
    std::ofstream(place.data + "/dev_splits_complete/dia0_utt" + std::to_string(clip) + ".mp4") << "no clip";
  std::ofstream(place.data + "/train_splits/dia0_utt2.mp4") << "no clip";
  const auto ends = run(place, "run", 2, {"--batch_size", "7", "--epochs", "2"});
  require_done(ends);
  const std::string bad = read_text(place.dir / "run" + "/bad_samples.csv");
  INFO(bad);
  CHECK(std::count(bad.begin(), bad.end(), '\n') == 1 + 5);
  CHECK_THAT(bad, Catch::Contains("\nvalidation,0,") && Catch::Contains("\ntrain,2,"));
}

TEST_CASE("trainkit launch starts ranks of trainkit-emotion, and their dry run trains nothing",
          "[ranks][emotion][launch]") {
  const EmotionPlace place;
  const auto launch = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"launch", "--nproc_per_node", "2", "--", "trainkit-emotion"};
    words.back() = std::string(TRAINKIT_BIN_DIR) + "/trainkit-emotion";
    const std::vector<std::string> flags = place.flags(name, more, /*sound=*/true);
    words.insert(words.end(), flags.begin(), flags.end());
    return run_to_end("trainkit", words, place.dir.path().string());
  };
  const Ended trained = launch("run", {});
  INFO(trained.output << trained.errors);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.output, Catch::Contains("test       accuracy ") && Catch::Contains("monitor: utilisation "));
  CHECK(scored_clips(place.dir / "run") == 14);
  const Ended dry = launch("dry", {"--dry_run", "--batch_size", "auto"});
  INFO(dry.output << dry.errors);
  CHECK(dry.code == 0);
  CHECK_THAT(dry.output, Catch::Contains("predicted per device at the peak"));
  CHECK_FALSE(std::filesystem::exists(place.dir / "dry"));
}
