// MELD's original csv files; its clips may not be redistributed.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "emotion_recognition/clips.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::emotion;
using namespace trainkit::test;

TEST_CASE("MELD's csv files have the numbers of clips and classes given in its paper", "[apps][emotion]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  const std::string meld = data_dir() + "/meld/";
  const TempDir dir;
  std::filesystem::create_directory(dir / "clips");
  std::ofstream(dir / "clips/dia0_utt0.mp4") << "x";
  const struct {
    const char* csv;
    int64_t clips;
    std::vector<int64_t> counts;
  } splits[] = {{"train_sent_emo.csv", 9989, {4710, 1205, 268, 683, 1743, 271, 1109}},
                {"dev_sent_emo.csv", 1109, {470, 150, 40, 111, 163, 22, 153}},
                {"test_sent_emo.csv", 2610, {1256, 281, 50, 208, 402, 68, 345}}};
  for (const auto& split : splits) {
    INFO(split.csv);
    const ClipList list = read_clips({meld + split.csv, dir / "clips"}, {}, meld_emotions()).value();
    CHECK(list.size() == split.clips);
    CHECK(list.counts() == split.counts);
    CHECK(missing_classes(list).empty());
  }
}
