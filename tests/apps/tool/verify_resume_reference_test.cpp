// TensorBoard's own reader on the event files of a trainer that was killed.
#include <nlohmann/json.hpp>

#include "apps/tool/verified.h"
#include "reference_util.h"
#include "test_util.h"

using namespace trainkit::test;

TEST_CASE("Stock TensorBoard reads the files of a trainer that is killed and not resumed", "[apps][tool][resume]") {
  if (!python_has("tensorboard")) TRAINKIT_SKIP("no Python with tensorboard");
  const TextPlace place;
  const int kills = is_full() ? 100 : 3;
  std::string folders;
  for (int i = 0; i < kills; ++i) {
    const std::string out = place.dir / ("run" + std::to_string(i));
    Program program("trainkit-transformer", place.flags({"--batch_size", "4", "--output_dir", out}),
                    place.dir.path().string());
    while (read_text(out + "/checkpoints/latest").empty()) {
      REQUIRE_FALSE(program.poll());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 7919 % 300));
    program.kill(SIGKILL);
    program.wait();
    folders += " " + out + "/tensorboard";
  }
  run_reference("tensorboard_events.py", place.dir / "events.json" + folders);
  const auto events = nlohmann::json::parse(read_text(place.dir / "events.json"));
  REQUIRE(events.size() == static_cast<size_t>(kills));
  for (const auto& [folder, found] : events.items()) {
    INFO(folder);
    const auto& losses = found.at("scalars").at("train/loss");
    REQUIRE(losses.size() >= 2);
    for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i][0] == 5 * (static_cast<int64_t>(i) + 1));
  }
}

TEST_CASE("Stock TensorBoard reads the same from a run that was killed and resumed as from an uninterrupted run",
          "[apps][tool][resume]") {
  if (!python_has("tensorboard")) TRAINKIT_SKIP("no Python with tensorboard");
  const TextPlace place;
  const Verified verified(place, command({"--kills", "4", "--keep", "--folder", place.dir / "runs"},
                                         "trainkit-transformer", place.flags({"--batch_size", "4"})));
  INFO(verified.output << verified.errors);
  REQUIRE(verified.code == 0);
  const std::string whole = place.dir / "runs/undisturbed/tensorboard";
  const std::string killed = place.dir / "runs/interrupted-1/tensorboard";
  run_reference("tensorboard_events.py", (place.dir / "events.json") + " " + whole + " " + killed);
  const auto events = nlohmann::json::parse(read_text(place.dir / "events.json"));
  for (const char* tag : {"train/loss", "val/loss", "train/lr"}) {
    INFO(tag);
    CHECK(events.at(whole).at("scalars").at(tag).size() >= 3);
    CHECK(events.at(killed).at("scalars").at(tag) == events.at(whole).at("scalars").at(tag));
  }
}
