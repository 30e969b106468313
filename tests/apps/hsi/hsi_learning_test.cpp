// trainkit-hsi with a real scene: Salinas-A and default settings.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "apps/runs.h"
#include "test_util.h"

using namespace trainkit::test;

TEST_CASE("Salinas-A: 10 % of the pixels and 40 epochs with defaults reach a mean OA of 99.5 %", "[apps][hsi][slow]") {
  if (data_dir().empty()) TRAINKIT_SKIP("TRAINKIT_TEST_DATA is not set");
  const TempDir dir;
  const std::string repeats = is_full() ? "5" : "2";
  const Ended ended = run_to_end("trainkit-hsi",
                                 {"--data_dir", data_dir() + "/hsi", "--scene", "salinas_a", "--epoch", "40",
                                  "--repeats", repeats, "--output_dir", dir / "run", "--device", "cpu"},
                                 dir.path().string());
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(read_text(dir / "run" + "/summary.json"));
  INFO(summary.dump(2));
  CHECK(summary.at("repeats").get<double>() == std::stod(repeats));
  CHECK(summary.at("oa").get<double>() >= 0.995);
  CHECK(summary.at("aa").get<double>() >= 0.99);
  CHECK(summary.at("leak").get<double>() > 0.5);  // random pixels of a small scene: the leak is reported, not hidden
  // On all labelled pixels outside the training set.
  const auto split = nlohmann::json::parse(read_text(dir / "run/repeat-1" + "/split.json"));
  CHECK(split.at("train").size() + split.at("validation").size() + split.at("test").size() == 5348);
  CHECK(split.at("train").size() + split.at("validation").size() <= 540);
}
