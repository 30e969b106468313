// trainkit-hsi interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
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
