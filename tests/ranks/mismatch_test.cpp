// Ranks that were started with different settings all end and report the difference.
#include "ranks.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Ranks that differ all end with exit code 8 and name the field", "[ranks][mismatch]") {
  struct Mismatch {
    const char* odd;
    const char* field;
  };
  for (const auto& [odd, field] : {Mismatch{"library", "library: differs between ranks"},
                                   {"shape", "parameter out.weight: differs between ranks"},
                                   {"name", "parameter another.weight: differs between ranks"},
                                   {"dtype", "parameter hidden.weight: differs between ranks"},
                                   {"frozen", "requires_grad of hidden.weight: differs between ranks"},
                                   {"rows", "differs between ranks"},
                                   {"seed", "seed of the order: differs between ranks"},
                                   {"batch", "batch_size: differs between ranks"},
                                   {"steps", "max_steps: differs between ranks"},
                                   {"precision", "precision: differs between ranks"},
                                   {"accumulation", "grad_accum_steps: differs between ranks"},
                                   {"clip", "grad_clip: differs between ranks"},
                                   {"evaluation", "eval_every: differs between ranks"}}) {
    const TempDir folder;
    RanksOptions job{.world = 2, .program = "trainkit-test-rank", .flags = {"--folder", folder.path().string()}};
    job.more = [&odd = odd](int64_t rank) {
      return rank == 1 ? std::vector<std::string>{"--odd", odd} : std::vector<std::string>{};
    };
    const auto ends = RankJob(job, folder.path().string()).wait();
    INFO(odd << "\n" << describe(ends));
    for (const RankEnd& end : ends) {
      CHECK(end.code == 8);
      CHECK_THAT(end.errors, Catch::Contains("error[dist.digest] ") && Catch::Contains(field));
      CHECK(end.output.empty());
    }
  }
}
