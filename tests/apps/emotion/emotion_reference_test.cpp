// Compares the scores of trainkit-emotion with scikit-learn's, from the predictions that it writes.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "apps/emotion/emotion_place.h"
#include "reference_util.h"

using namespace trainkit::test;

TEST_CASE("The scores of a run equal scikit-learn's for its predictions.csv", "[apps][emotion][reference]") {
  if (!python_has("sklearn")) TRAINKIT_SKIP("no Python with scikit-learn");
  const EmotionPlace place;
  // Two test clips cannot be read: one is empty, one is missing.
  std::filesystem::resize_file(place.data + "/output_repeated_splits_test/dia0_utt2.mp4", 0);
  std::filesystem::remove(place.data + "/output_repeated_splits_test/dia1_utt5.mp4");
  const Ended ended = run_emotion(
      place.dir, place.flags("run", {"--epochs", "6", "--batch_size", "7", "--parallel", "2", "--lr_audio", "1e-3"},
                             /*sound=*/true));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const std::string run = place.dir / "run";
  std::map<std::string, std::vector<double>> theirs;
  for (const auto& cells : parse_csv(run_reference("clip_scores.py", run + "/results/predictions.csv"))) {
    for (size_t i = 1; i < cells.size(); ++i) theirs[cells[0]].push_back(std::stod(cells[i]));
  }
  const auto ours = json_of(run + "/results/scores.json");
  INFO(ours.dump(2));
  CHECK(ours.at("unreadable") == 2);
  for (const char* name : {"accuracy", "weighted_f1", "macro_f1"}) {
    INFO(name);
    CHECK(ours.at(name).get<double>() == Approx(theirs.at(name)[0]).epsilon(1e-12));
  }
  CHECK(ours.at("accuracy").get<double>() > ours.at("majority").get<double>());  // predictions have more than one label
  for (size_t k = 0; k < 7; ++k) {
    const auto& label = ours.at("labels")[k];
    INFO(label.at("name"));
    for (const char* name : {"precision", "recall", "f1", "rows"}) {
      CHECK(label.at(name).get<double>() == Approx(theirs.at(name)[k]).epsilon(1e-12));
    }
    for (size_t other = 0; other < 7; ++other) {
      CHECK(ours.at("confusion")[k][other].get<double>() == theirs.at("confusion")[k * 7 + other]);
    }
  }
}
