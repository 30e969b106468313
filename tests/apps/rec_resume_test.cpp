// trainkit-gpt2rec interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include "continued.h"
#include "interruptions.h"
#include "rec_place.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-gpt2rec interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][rec][resume]") {
  const RecPlace place;
  const std::vector<std::string> more = {"--epochs",     "12", "--save_every",     "8",
                                         "--eval_every", "10", "--early_stopping", "0"};
  verify_resume("trainkit-gpt2rec", place.flags("", more), place.dir);
}

TEST_CASE("A run of trainkit-gpt2rec continues from its folder alone, and a refused one changes no file",
          "[apps][rec][resume]") {
  const RecPlace place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run, {"--max_steps", steps, "--epochs", "100", "--early_stopping", "0", "--save_every", "3",
                             "--eval_every", "3", "--scheduler", "constant", "--warmup_steps", "0"});
  };
  check_continued({.program = "trainkit-gpt2rec",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--embed_dim", "4"}},
                  place.dir);
}
