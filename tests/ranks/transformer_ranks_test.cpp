// trainkit-transformer on several devices: the same training as on one, resumed with the same bits on any number.
#include <map>
#include <nlohmann/json.hpp>

#include "apps/transformer/text_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// `world` ranks; 0: one process without a launcher.
RanksOptions job_of(const Place& place, const std::string& name, int64_t world, const std::vector<std::string>& more) {
  return {.world = std::max<int64_t>(world, 1), .launched = world > 0, .flags = place.flags(name, more)};
}

std::vector<RankEnd> run(const Place& place, const std::string& name, int64_t world,
                         const std::vector<std::string>& more) {
  return RankJob(job_of(place, name, world, more), place.dir.path().string()).wait();
}

/// The same with 16 rows per step on any number of devices, and without dropout, whose masks would differ.
std::vector<RankEnd> run_plain(const Place& place, const std::string& name, int64_t world,
                               const std::vector<std::string>& more) {
  RanksOptions job = job_of(place, name, world, more);
  const auto dropout = std::find(job.flags.begin(), job.flags.end(), "--dropout");
  dropout[1] = "0";
  const auto accumulation = std::find(job.flags.begin(), job.flags.end(), "--grad_accum_steps");
  accumulation[0] = "--global_batch_size";
  accumulation[1] = "16";
  return RankJob(job, place.dir.path().string()).wait();
}

void check_near(const std::vector<Loss>& a, const std::vector<Loss>& b, double epsilon) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].step == b[i].step);
    CHECK(a[i].split == b[i].split);
    CHECK(a[i].loss == Approx(b[i].loss).epsilon(epsilon));
  }
}

}  // namespace

TEST_CASE("Warnings about the launcher's environment are in the first lines", "[ranks][transformer]") {
  const Place place;
  RanksOptions job = job_of(place, "odd", 2, {"--max_steps", "1"});
  job.environment = [](int64_t) { return std::vector<std::string>{"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}; };
  const auto ends = RankJob(job, place.dir.path().string()).wait();
  require_done(ends);
  CHECK_THAT(ends[0].output, Catch::Contains("warning: TORCH_NCCL_ASYNC_ERROR_HANDLING=0: NCCL does not notice"));
}

TEST_CASE("dp and ddp log the losses of one device with the same global batch", "[ranks][transformer]") {
  const Place place;
  // 1,108 windows in steps of 16: the second epoch begins at step 70, after a smaller step.
  const std::vector<std::string> flags = {"--max_steps", "80", "--eval_every", "20", "--save_every", "40"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  require_done(run_plain(place, "single", 0, flags));
  const auto expected = losses(place.dir / "single");
  REQUIRE(expected.size() == 16 + 4);
  const auto dp = run_plain(place, "dp", 0, with({"--parallel", "2"}));
  require_done(dp);
  CHECK_THAT(dp[0].output, Catch::Contains("strategy   dp on cpu, 2 logical replicas") &&
                               Catch::Contains("4 per device x 2 devices x 2 accumulated = 16 per step"));
  check_near(losses(place.dir / "dp"), expected, 1e-4);
  for (const int64_t world : {1, 2, 4}) {
    const std::string name = "ddp" + std::to_string(world);
    const auto ends = run_plain(place, name, world, flags);
    require_done(ends);
    INFO(name);
    CHECK_THAT(ends[0].output, Catch::Contains("strategy   ddp over " + std::to_string(world) + " ranks, each on cpu"));
    for (size_t rank = 1; rank < ends.size(); ++rank) CHECK(ends[rank].output.empty());
    for (const RankEnd& end : ends) CHECK(end.errors.empty());
    check_near(losses(place.dir / name), expected, 1e-4);
  }
  // A run resumed on other devices with its original flags keeps the global batch too.
  const auto ends = run_plain(place, "single", 4, {"--max_steps", "90", "--eval_every", "20", "--resume", "latest"});
  require_done(ends);
  CHECK_THAT(ends[0].output, Catch::Contains("4 per device x 4 devices x 1 accumulated = 16 per step"));
  const auto three = run_plain(place, "single", 3, {"--max_steps", "99", "--resume", "latest"});
  require_done(three, 8);
  CHECK_THAT(three[0].errors, Catch::Contains("global_batch_size: is not divisible by the number of devices"));
}

TEST_CASE("A run of several devices that is killed and resumed has the bits of an uninterrupted run",
          "[ranks][transformer][resume]") {
  for (const int64_t world : {0, 2}) {
    const Place place;
    std::vector<std::string> flags = {"--max_steps", "90", "--eval_every", "25"};
    if (world == 0) flags.insert(flags.end(), {"--parallel", "2"});
    const auto with = [&](std::vector<std::string> more) {
      more.insert(more.end(), flags.begin(), flags.end());
      return more;
    };
    require_done(run(place, "whole", world, with({"--save_every", "90"})));
    const std::string expected = checkpoint_bytes(place.dir / "whole", "00000090");
    for (const std::string save_every : {"7", "25", "71"}) {  // 71 is in the second epoch
      const std::string name = "killed" + save_every;
      RankJob(job_of(place, name, world, with({"--save_every", save_every})), place.dir.path().string())
          .kill_after_checkpoint(place.dir / name);
      require_done(run(place, name, world, with({"--save_every", "90", "--resume", "latest"})));
      INFO(world << " ranks, killed after step " << save_every);
      CHECK(checkpoint_bytes(place.dir / name, "00000090") == expected);
      CHECK(losses(place.dir / name) == losses(place.dir / "whole"));
    }
  }
}

TEST_CASE("--profile puts all ranks on one time line", "[ranks][transformer][profile]") {
  const Place place;
  require_done(run(place, "run", 2, {"--max_steps", "6", "--profile", "2"}));
  const auto trace = nlohmann::json::parse(read_text(place.dir / "run" + "/profile.json"));
  std::map<int64_t, int> updates;
  std::map<int64_t, std::string> names;
  double begin[2] = {0, 0}, end[2] = {0, 0};
  for (const auto& event : trace.at("traceEvents")) {
    const auto process = event.at("pid").get<int64_t>();
    if (event.at("name") == "process_name") names[process] = event.at("args").at("name");
    if (event.at("name") != "update") continue;
    const double at = event.at("ts").get<double>();
    const int64_t rank = process / 1000;
    if (updates[process]++ == 0) begin[rank] = at;
    end[rank] = at;
  }
  CHECK(names == std::map<int64_t, std::string>{{0, "rank 0"}, {1000, "rank 1"}});
  CHECK(updates == std::map<int64_t, int>{{0, 5}, {1000, 5}});
  CHECK(begin[0] < end[1]);  // the steps of both ranks overlap
  CHECK(begin[1] < end[0]);
  CHECK(!std::filesystem::exists(place.dir / "run" + "/profile.rank1.json"));
}

TEST_CASE("SIGTERM to one rank of the trainer stops all with a checkpoint that verifies", "[ranks][transformer]") {
  for (const int64_t victim : {1, 0}) {
    const Place place;
    RanksOptions job{.world = 2, .flags = place.flags("run", {"--max_steps", "1000000", "--save_every", "1000000"})};
    RankJob ranks(job, place.dir.path().string());
    while (read_text(place.dir / "run" + "/metrics.jsonl").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ranks[victim].kill(SIGTERM);
    const auto ends = ranks.wait();
    require_done(ends, 143);
    CHECK_THAT(ends[0].output, Catch::Contains("--resume latest"));
    require_done(run(place, "run", 2, {"--max_steps", "1", "--resume", "latest"}));
  }
}

TEST_CASE("A rank that fails before the rendezvous, or because of its own data, ends the others",
          "[ranks][transformer]") {
  const Place place;
  struct Fault {
    std::vector<std::string> flags;
    int code;
    std::string text;
  };
  for (const auto& [flags, code, text] :
       {Fault{{"--batch_size", "none"}, 2, "--batch_size"}, Fault{{"--config", "/nowhere.yaml"}, 3, "nowhere.yaml"},
        Fault{{"--input", place.dir / "missing.txt"}, 4, "missing.txt"}}) {
    for (const int64_t victim : {1, 0}) {
      const std::string name = "run" + std::to_string(code) + std::to_string(victim);
      RanksOptions job{.world = 2};
      job.more = [&, &flags = flags](int64_t rank) {
        auto all = place.flags(name, {"--dist_timeout", "20s"});
        if (rank != victim) return all;
        for (size_t i = 0; i + 1 < flags.size(); i += 2) {
          const auto given = std::find(all.begin(), all.end(), flags[i]);
          if (given != all.end()) all.erase(given, given + 2);
          all.insert(all.end(), {flags[i], flags[i + 1]});
        }
        return all;
      };
      const auto ends = RankJob(job, place.dir.path().string()).wait();
      INFO(text << ", victim " << victim << "\n" << describe(ends));
      CHECK(ends[static_cast<size_t>(victim)].code == code);
      CHECK(ends[static_cast<size_t>(1 - victim)].code == 8);
      CHECK_THAT(ends[static_cast<size_t>(1 - victim)].errors, Catch::Contains("rank " + std::to_string(victim)));
    }
  }
}

TEST_CASE("Ranks of the trainer that differ report the setting, and no file is written", "[ranks][transformer]") {
  const Place place;
  std::ofstream(place.dir / "other.txt") << demo_text(15'000, 2);
  struct Mismatch {
    std::vector<std::string> flags;
    std::string text;
  };
  for (const auto& [flags, text] :
       {Mismatch{{"--lr", "0.5"}, "lr: differs between ranks"}, Mismatch{{"--hidden_dim", "32"}, "hidden_dim: differs"},
        Mismatch{{"--input", place.dir / "other.txt"}, "rows: differs between ranks"}}) {
    const TempDir folder;
    RanksOptions job{.world = 2};
    job.more = [&, &flags = flags](int64_t rank) {
      auto all = place.flags("unused", {"--dist_timeout", "20s"});
      for (size_t i = 0; i + 1 < all.size(); i += 2) {
        if (all[i] == "--output_dir") all[i + 1] = folder / ("run" + std::to_string(rank));
        if (rank == 1 && all[i] == flags[0]) all[i + 1] = flags[1];
      }
      if (rank == 1 && std::find(all.begin(), all.end(), flags[0]) == all.end()) {
        all.insert(all.end(), flags.begin(), flags.end());
      }
      return all;
    };
    std::filesystem::create_directories(folder / "run1");  // only rank 0 creates the run folder
    const auto ends = RankJob(job, place.dir.path().string()).wait();
    INFO(describe(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.code == 8);
      CHECK_THAT(end.errors, Catch::Contains("error[dist.digest] ") && Catch::Contains(text));
    }
    CHECK(!std::filesystem::exists(folder / "run0/checkpoints"));
  }
}
