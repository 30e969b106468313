// trainkit-hsi interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include "continued.h"
#include "hsi_place.h"
#include "interruptions.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-hsi interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][hsi][resume]") {
  const HsiPlace place;
  const std::vector<std::string> more = {"--epochs", "8", "--save_every", "7", "--eval_every", "20"};
  verify_resume("trainkit-hsi", place.flags("", more), place.dir);
}

TEST_CASE("Runs of trainkit-hsi may change workers and feed mode at each start", "[apps][hsi][resume]") {
  const HsiPlace place;
  const std::vector<std::string> more = {"--epochs", "8", "--save_every", "7", "--eval_every", "20"};
  verify_resume("trainkit-hsi", place.flags("", more), place.dir, Interruptions{.vary = "feed=loader:device"});
}

TEST_CASE("A run of trainkit-hsi continues from its folder alone, and a refused one changes no file",
          "[apps][hsi][resume]") {
  const HsiPlace place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run, {"--max_steps", steps, "--epochs", "100", "--save_every", "3", "--eval_every", "3",
                             "--scheduler", "constant", "--warmup_steps", "0"});
  };
  check_continued({.program = "trainkit-hsi",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--patch_size", "3"}},
                  place.dir);
}
