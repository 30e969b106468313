// trainkit-hsi --repeats as a user runs it.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/continued.h"
#include "apps/hsi/hsi_place.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run_repeats(const HsiPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-hsi", flags, place.dir.path().string());
}

nlohmann::json summary_of_repeat(const HsiPlace& place, const std::string& run) {
  return nlohmann::json::parse(read_text(place.dir / run + "/summary.json"));
}

}  // namespace

TEST_CASE("Repeats run with different seeds and report their mean and standard deviation", "[apps][hsi]") {
  const HsiPlace place;
  REQUIRE(run_repeats(place, place.flags("start", {"--epochs", "1"})).code == 0);
  const std::string start = place.dir / "start/best.safetensors";
  const Ended ended = run_repeats(place, place.flags("all", {"--repeats", "2", "--seed", "5", "--epochs", "1",
                                                             "--overwrite", "--init_from", start}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  REQUIRE(run_repeats(place, place.flags("second", {"--seed", "6", "--epochs", "1", "--init_from", start})).code == 0);
  const double first = summary_of_repeat(place, "all/repeat-1").at("oa"),
               second = summary_of_repeat(place, "all/repeat-2").at("oa");
  CHECK(second == summary_of_repeat(place, "second").at("oa").get<double>());
  CHECK(read_text(place.dir / "all/repeat-1" + "/split.json") != read_text(place.dir / "all/repeat-2" + "/split.json"));
  const auto all = summary_of_repeat(place, "all");
  CHECK(all.at("oa").get<double>() == Approx((first + second) / 2));
  CHECK(all.at("oa_std").get<double>() == Approx(std::abs(first - second) / std::sqrt(2)).margin(1e-12));
  for (const char* name : {"aa", "kappa", "leak", "aa_std", "kappa_std", "leak_std"}) CHECK(all.contains(name));
  CHECK(all.at("repeats") == 2);
  CHECK_THAT(ended.output, Catch::Contains(" runs     oa ") && Catch::Contains("(mean and standard deviation)"));
  const auto one = summary_of_repeat(place, "all/repeat-1"), two = summary_of_repeat(place, "all/repeat-2");
  for (const char* name : {"steps", "epochs", "wall_seconds"}) {
    CHECK(all.at(name).get<double>() == Approx(one.at(name).get<double>() + two.at(name).get<double>()));
  }
  for (const char* part : {"final", "best"}) {
    const double a = one.at(part).at("val_loss"), b = two.at(part).at("val_loss");
    CHECK(all.at(part).at("val_loss").get<double>() == Approx((a + b) / 2));
  }
  CHECK(all.at("runs") == nlohmann::json{{{"folder", "repeat-1"}, {"seed", 5}}, {{"folder", "repeat-2"}, {"seed", 6}}});

  // Finished repeats are left unchanged; only missing ones run.
  const auto resume = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--output_dir", place.dir / "all", "--resume", "latest"});
    const Ended resumed = run_repeats(place, more);
    INFO(resumed.errors);
    REQUIRE(resumed.code == 0);
    return resumed.output;
  };
  const auto whole = files_of(place.dir / "all");
  CHECK_THAT(resume({}), Catch::Contains("/all/repeat-2 is finished; to continue it, raise --epochs or --max_steps") &&
                             Catch::Contains("all 2 runs in " + (place.dir / "all") + " are finished"));
  CHECK(files_of(place.dir / "all") == whole);
  fs::remove_all(place.dir / "all/repeat-2");  // it starts from --init_from again
  const auto first_files = files_of(place.dir / "all/repeat-1");
  resume({});
  CHECK(files_of(place.dir / "all/repeat-1") == first_files);
  auto again = summary_of_repeat(place, "all"), expected = all;
  for (auto* summary : {&again, &expected}) {
    for (const char* time : {"wall_seconds", "effective_fraction"}) summary->erase(time);
  }
  CHECK(again == expected);
  fs::remove(start);  // repeats that have begun do not need it
  resume({"--epochs", "2"});
  CHECK(summary_of_repeat(place, "all").at("epochs") == 4);
  CHECK_THAT(read_text(place.dir / "all/config.yaml"), Catch::Contains("\nepochs: 2"));
}
