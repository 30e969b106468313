// A trainer on a disk that becomes full. Needs permission to mount; skipped otherwise.
#include <catch2/catch.hpp>

#include "apps/transformer/text_place.h"
#include "faults/tmpfs.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("A disk that becomes full ends a run with exit code 6 and the missing space, or the run continues by flag",
          "[apps][transformer][faults]") {
  const Tmpfs disk("size=1m");
  if (!disk.mounted()) TRAINKIT_SKIP("this user cannot mount a tmpfs");
  const Place place;
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> flags = place.flags("", {"--max_steps", "400", "--save_every", "10", "--keep_last", "0",
                                                      "--no-use_tensorboard", "--eval_every", "1000000"});
    *(std::find(flags.begin(), flags.end(), "--output_dir") + 1) = disk / "run";
    // Less is free than a checkpoint takes: enough for the end of a run with few records.
    *(std::find(flags.begin(), flags.end(), "--log_every") + 1) = "50";
    flags.insert(flags.end(), more.begin(), more.end());
    return run_to_end("trainkit-transformer", flags, place.dir.path().string());
  };
  const Ended full = run({});
  INFO(full.output << full.errors);
  REQUIRE(full.code == 6);
  CHECK_THAT(full.errors,
             Catch::StartsWith("trainkit: error[ckpt.space] ") &&
                 Catch::Contains("not enough disk space for this checkpoint; earlier checkpoints are unchanged") &&
                 Catch::Contains(" free', expected "));
  const auto last = resolve_checkpoint("latest", disk / "run");
  REQUIRE(last.ok());
  CHECK(last->step >= 50);
  CHECK(verify_checkpoint(*last) == absl::OkStatus());

  const Ended on = run({"--resume", "latest", "--on_save_error", "continue"});
  INFO(on.output << on.errors);
  CHECK(on.code == 0);
  CHECK_THAT(on.output, Catch::Contains("warning: error[ckpt.space] ") &&
                            Catch::Contains("continuing with the last good checkpoint") &&
                            Catch::Contains("validation loss"));
  CHECK(resolve_checkpoint("latest", disk / "run")->step == last->step);
  CHECK(verify_checkpoint(*last) == absl::OkStatus());
}
