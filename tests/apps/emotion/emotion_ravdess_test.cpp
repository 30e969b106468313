// trainkit-emotion with the voices of an actor not in the training set.
#include "apps/emotion/ravdess_clips.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Emotions of an unseen actor are classified twice as well as by the most frequent label", "[apps][emotion]") {
  if (data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  if (!is_full()) TRAINKIT_SKIP("12 trainings: --full");
  const TempDir dir;
  const RavdessClips clips(dir / "clips", 32);
  double accuracy = 0, majority = 0;
  for (int64_t seed = 0; seed < 3; ++seed) {
    for (int64_t actor = 1; actor <= 4; ++actor) {
      // The epoch is chosen with one of the other three actors, of the opposite sex, so that both sexes are in the
      // training set.
      const int64_t chooser = actor % 4 + 1;
      std::vector<int64_t> trained;
      for (int64_t a = 1; a <= 4; ++a) {
        if (a != actor && a != chooser) trained.push_back(a);
      }
      const std::string name = std::to_string(seed) + "-" + std::to_string(actor);
      const auto summary = train_on_clips(dir, "run" + name, dir / "clips",
                                          {clips.table("train" + name, trained), clips.table("val" + name, {chooser}),
                                           clips.table("test" + name, {actor})},
                                          {"--modality", "audio", "--audio_seconds", "4", "--batch_size", "10",
                                           "--epochs", "40", "--lr_audio", "1e-3", "--seed", std::to_string(seed)});
      accuracy += summary.at("accuracy").get<double>() / 12;
      majority += summary.at("majority").get<double>() / 12;
      std::cout << "seed " << seed << ", actor " << actor << ": " << summary.at("accuracy") << std::endl;
    }
  }
  std::cout << "mean " << accuracy << ", most frequent label " << majority << std::endl;
  CHECK(accuracy >= 2 * majority);
}
