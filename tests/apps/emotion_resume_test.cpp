// trainkit-emotion interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include <stdlib.h>

#include "emotion_place.h"
#include "interruptions.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-emotion interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][emotion][resume]") {
  setenv("OMP_NUM_THREADS", "1", 1);  // the number of threads changes the last bits; the default depends on the workers
  const EmotionPlace place;
  const std::vector<std::string> more = {"--epochs",     "5",  "--save_every", "4",   "--eval_every", "3",
                                         "--batch_size", "14", "--lr_audio",   "1e-3"};
  verify_resume("trainkit-emotion", place.flags("", more, /*sound=*/true), place.dir);
}
