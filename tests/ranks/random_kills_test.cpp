// Ranks of the real trainer that are killed or suspended at random moments: none hangs, and the run resumes from its
// last checkpoint.
#include <random>

#include "apps/transformer/text_place.h"
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;
using std::chrono::steady_clock;

TEST_CASE("No rank hangs when one is killed or suspended at a random moment", "[ranks][kills]") {
  const bool full = is_full();
  const int wanted = full ? 60 : 6;
  constexpr double kTimeout = 8;  // a loaded machine needs several seconds to start four programs
  std::mt19937 random(17);
  double slowest_kill = 0, slowest_stop = 0, sum_kill = 0;
  int kills = 0, stops = 0, before_meeting = 0;
  const Place place;
  for (int i = 0; i < wanted; ++i) {
    const int64_t world = i % 2 ? 4 : 2;
    const bool kill = i % 3 != 0;
    const auto victim = static_cast<int64_t>(random() % static_cast<uint64_t>(world));
    const std::string name = "run" + std::to_string(i);
    const std::string log = place.dir / name + "/metrics.jsonl";
    RanksOptions job{.world = world};
    job.flags = place.flags(name, {"--max_steps", "1000000", "--save_every", "7", "--eval_every", "20",
                                   "--dist_timeout", "8s", "--num_workers", "1"});
    if (i % 4 >= 2) job.flags.push_back("--no-dist_shared_memory");
    RankJob ranks(job, place.dir.path().string());
    // Most moments are during training, some during the rendezvous.
    const bool early = i % 10 == 9;
    const auto started = steady_clock::now();
    while (!early && read_text(log).empty()) {
      INFO("world " << world << ", " << ranks[0].errors() << ranks[1].errors());
      REQUIRE(steady_clock::now() - started < std::chrono::seconds(60));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::this_thread::sleep_for(
        std::chrono::duration<double>(std::uniform_real_distribution<double>(0, early ? 1.2 : 0.7)(random)));
    const bool met = !read_text(log).empty();
    before_meeting += !met;
    ranks[victim].kill(kill ? SIGKILL : SIGSTOP);
    const auto harm = steady_clock::now();
    // The others end on their own; then the suspended one is killed.
    double slowest = 0;
    std::vector<int64_t> others;
    for (int64_t rank = 0; rank < world; ++rank) {
      if (rank != victim) others.push_back(rank);
    }
    while (!others.empty()) {
      const double seconds = std::chrono::duration<double>(steady_clock::now() - harm).count();
      INFO("world " << world << ", victim " << victim << (kill ? " killed" : " stopped")
                    << ", ranks left: " << others.size());
      REQUIRE(seconds < 90);
      std::erase_if(others, [&](int64_t rank) {
        const auto code = ranks[rank].poll();
        if (!code) return false;
        INFO("rank " << rank << ": " << ranks[rank].errors());
        CHECK(*code == 8);
        const std::string errors = ranks[rank].errors();
        CHECK_THAT(errors, Catch::Contains("[rank " + std::to_string(rank) + "] trainkit: error[dist."));
        if (met) CHECK_THAT(errors, Catch::Contains("rank " + std::to_string(victim)));
        slowest = seconds;
        return true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ranks[victim].kill(SIGKILL);
    ranks[victim].wait();
    if (met) {
      (kill ? slowest_kill : slowest_stop) = std::max(kill ? slowest_kill : slowest_stop, slowest);
      (kill ? kills : stops) += 1;
      if (kill) sum_kill += slowest;
    }
    // The saved checkpoint is complete: the run resumes from it, here with one process.
    if (i % 5 == 0 && std::filesystem::exists(place.dir / name + "/checkpoints/latest")) {
      auto flags = place.flags(name, {"--max_steps", "1", "--resume", "latest"});
      Program again("trainkit-transformer", flags, place.dir.path().string());
      INFO(again.errors());
      CHECK(again.wait() == 0);
    }
  }
  std::cout << wanted << " random faults over 2 and 4 ranks, 0 hangs; " << before_meeting << " before the first step; "
            << kills << " kills: the others ended after " << sum_kill / std::max(kills, 1) << " s on average, at most "
            << slowest_kill << " s; " << stops << " stops with a timeout of " << kTimeout << " s: at most "
            << slowest_stop << " s" << std::endl;
}
