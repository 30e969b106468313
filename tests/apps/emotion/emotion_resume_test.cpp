// trainkit-emotion interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include <stdlib.h>

#include "apps/continued.h"
#include "apps/emotion/emotion_place.h"
#include "apps/interruptions.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-emotion interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][emotion][resume]") {
  setenv("OMP_NUM_THREADS", "1", 1);  // the number of threads changes the last bits; the default depends on the workers
  const EmotionPlace place;
  const std::vector<std::string> more = {"--epochs",     "5",  "--save_every", "4",    "--eval_every", "3",
                                         "--batch_size", "14", "--lr_audio",   "1e-3", "--ema",        "0.8"};
  verify_resume("trainkit-emotion", place.flags("", more, /*sound=*/true), place.dir);
}

TEST_CASE("A run of trainkit-emotion continues from its folder alone, and a refused one changes no file",
          "[apps][emotion][resume]") {
  setenv("OMP_NUM_THREADS", "1", 1);
  const EmotionPlace place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run,
                       {"--batch_size", "14", "--max_steps", steps, "--epochs", "100", "--save_every", "3",
                        "--eval_every", "3", "--scheduler", "constant", "--warmup_steps", "0"},
                       /*sound=*/true);
  };
  check_continued({.program = "trainkit-emotion",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--audio_seconds", "2"},
                   .change_data =
                       [&] {  // the same clips in another order
                         const std::string csv = place.data + "/train_sent_emo.csv", rows = read_text(csv);
                         const size_t first = rows.find('\n') + 1, second = rows.find('\n', first) + 1;
                         std::ofstream(csv)
                             << rows.substr(0, first) << rows.substr(second) << rows.substr(first, second - first);
                       }},
                  place.dir);
}
