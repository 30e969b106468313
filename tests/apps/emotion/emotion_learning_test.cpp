// trainkit-emotion learns its training clips.
#include <filesystem>
#include <fstream>

#include "apps/emotion/ravdess_clips.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("The model overfits 32 clips to more than 95 % accuracy", "[apps][emotion]") {
  if (data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  const TempDir dir;
  const RavdessClips clips(dir / "clips", 32);
  // 32 clips of two actors, tested on copies: a file must not be in two splits
  const std::string learned = clips.table("learned", {2, 4}), other = clips.table("other", {1});
  std::filesystem::create_directory(dir / "clips/copies");
  std::ofstream table(dir / "clips/copied.csv");
  table << "file,emotion\n";
  int64_t rows = 0;
  for (const Recording& recording : clips.recordings()) {
    if (recording.actor != 2 && recording.actor != 4) continue;
    const std::string name = std::filesystem::path(clips.clip(recording)).filename().string();
    std::filesystem::copy(clips.clip(recording), dir / "clips/copies/" + name);
    table << "copies/" << name << "," << recording.emotion << "\n";
    ++rows;
  }
  table.close();
  CHECK(rows == 32);
  // One evaluation, at the end: the test uses these weights.
  const auto summary = train_on_clips(dir, "run", dir / "clips", {learned, other, dir / "clips/copied.csv"},
                                      {"--frames",
                                       "2",
                                       "--image_size",
                                       "32",
                                       "--audio_seconds",
                                       "1",
                                       "--batch_size",
                                       "16",
                                       "--epochs",
                                       "60",
                                       "--eval_every",
                                       "120",
                                       "--lr",
                                       "2e-3",
                                       "--lr_visual",
                                       "2e-3",
                                       "--lr_audio",
                                       "2e-3",
                                       "--label_smoothing",
                                       "0",
                                       "--dropout",
                                       "0"});
  INFO(summary.dump(2));
  CHECK(summary.at("accuracy").get<double>() > 0.95);
}
