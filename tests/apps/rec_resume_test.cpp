// trainkit-gpt2rec interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
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
