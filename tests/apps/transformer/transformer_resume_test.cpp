// trainkit-transformer interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev
// test --full).
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/continued.h"
#include "apps/interruptions.h"
#include "apps/transformer/text_place.h"
#include "test_util.h"

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
  const bool full = is_full();
  verify_resume("trainkit-transformer", flags, place.dir, {.count = full ? 100 : 3});
}

TEST_CASE("Runs with Muon and an average of the weights end with the same bytes when they are killed",
          "[apps][transformer][resume]") {
  const Place place;
  const bool full = is_full();
  verify_resume("trainkit-transformer",
                place.flags("", {"--max_steps", "200", "--save_every", "20", "--eval_every", "100", "--optimizer",
                                 "muon", "--ema", "0.9"}),
                place.dir, {.count = full ? 100 : 3});
}

TEST_CASE(
    "A run of trainkit-transformer continues from its folder alone, and a refused one or one on other data changes no "
    "file",
    "[apps][transformer][resume]") {
  const Place place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run, {"--max_steps", steps, "--epochs", "100", "--save_every", "3", "--eval_every", "3",
                             "--scheduler", "constant", "--warmup_steps", "0"});
  };
  check_continued({.program = "trainkit-transformer",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--hidden_dim", "32"},
                   .change_data = [&] { std::ofstream(place.dir / "text.txt") << demo_text(20'000, 2); }},
                  place.dir);
}

TEST_CASE("A finished run whose summary was lost gets the same metrics from its log", "[apps][transformer][resume]") {
  const Place place;
  const std::string folder = place.dir / "run", file = folder + "/summary.json";
  REQUIRE(run(place, place.flags("run", {"--max_steps", "10", "--save_every", "5"})).code == 0);
  const auto summary = nlohmann::json::parse(read_text(file));
  REQUIRE(summary.at("final").at("train_loss").get<double>() > 0);
  std::filesystem::remove(file);
  const std::vector<std::string> resume = {"--output_dir", folder, "--resume", "latest"};
  REQUIRE(run(place, resume).code == 0);
  const auto again = nlohmann::json::parse(read_text(file));
  for (const char* part : {"final", "best", "best_step", "steps", "epochs"}) CHECK(again.at(part) == summary.at(part));

  // Without a record of the last step the loss of the training is unknown.
  std::filesystem::remove(file);
  std::ofstream(folder + "/metrics.jsonl") << "";
  REQUIRE(run(place, resume).code == 0);
  CHECK(nlohmann::json::parse(read_text(file)).at("final") == nlohmann::json::object());
}

TEST_CASE("A run that continues under another version of LibTorch says so in one line and in run.json",
          "[apps][transformer][resume]") {
  const Place place;
  const std::string folder = place.dir / "run", file = folder + "/run.json";
  const auto lines = [](const std::string& text) {
    std::vector<std::string> found;
    for (size_t at = text.find("LibTorch 2."); at != text.npos; at = text.find("LibTorch 2.", at + 1)) {
      found.push_back(text.substr(at, text.find('\n', at) - at));
    }
    return found;
  };
  const auto resume = [&](const char* steps) {
    return run(place, {"--output_dir", folder, "--resume", "latest", "--max_steps", steps});
  };
  REQUIRE(run(place, place.flags("run", {"--max_steps", "2", "--save_every", "2"})).code == 0);
  auto record = nlohmann::ordered_json::parse(read_text(file));
  auto& version = record.at("sessions").at(0).at("versions").at("libtorch");
  const std::string line = "LibTorch 2.0.1 wrote it, " + version.get<std::string>() +
                           " continues: results may differ by rounding from those of one version";
  version = "2.0.1";
  std::ofstream(file) << record;

  const Ended other = resume("3");
  INFO(other.errors);
  REQUIRE(other.code == 0);
  CHECK(lines(other.output) == std::vector<std::string>{line});
  const auto session = nlohmann::json::parse(read_text(file)).at("sessions").at(1);
  const auto has_line = [&](const nlohmann::json& fact) { return fact.at(1) == line; };
  CHECK(std::count_if(session.at("facts").begin(), session.at("facts").end(), has_line) == 1);

  const Ended same = resume("4");  // the session before it wrote the checkpoint
  REQUIRE(same.code == 0);
  CHECK(lines(same.output).empty());
}
