// trainkit-transformer interrupted at random moments: some times, or hundreds of times with TRAINKIT_TEST_FULL (./dev
// test --full).
#include "interruptions.h"
#include "test_util.h"
#include "text_place.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs interrupted at random moments end with the bytes of one that was not", "[apps][transformer][resume]") {
  const Place place;
  verify_resume("trainkit-transformer",
                place.flags("", {"--max_steps", "400", "--save_every", "20", "--eval_every", "100"}), place.dir);
}
