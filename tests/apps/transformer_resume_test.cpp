// trainkit-transformer interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev
// test --full).
#include "interruptions.h"
#include "test_util.h"
#include "text_place.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][transformer][resume]") {
  const Place place;
  verify_resume("trainkit-transformer",
                place.flags("", {"--max_steps", "400", "--save_every", "20", "--eval_every", "100"}), place.dir);
}

TEST_CASE("Runs with fused blocks end with the same bytes when they are killed", "[apps][transformer][resume]") {
  const Place place;
  std::vector<std::string> flags =
      place.flags("", {"--max_steps", "300", "--save_every", "20", "--eval_every", "100", "--precision", "bf16"});
  set_flag(flags, "--hidden_dim", "32");  // heads of 16 values
  set_flag(flags, "--dropout", "0");
  const bool full = !environment("TRAINKIT_TEST_FULL").empty();
  verify_resume("trainkit-transformer", flags, place.dir, {.count = full ? 100 : 3});
}
