#include "trainkit/report/summary.h"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "test_util.h"

using namespace trainkit;
using nlohmann::json;

namespace {
json read(const std::string& path) { return json::parse(std::ifstream(path)); }
}  // namespace

TEST_CASE("The summary has the outcome, the scores and the settings of the run", "[logging][summary]") {
  test::TempDir dir;
  RunSummary summary{.exit_reason = "early_stopping",
                     .steps = 2000,
                     .epochs = 4.5,
                     .wall_seconds = 123.5,
                     .effective_fraction = 0.97,
                     .final_metrics = {{"val_loss", 1.5}, {"a\nb", 1}},
                     .best_metrics = {{"val_loss", 1.25}},
                     .best_step = 1800,
                     .versions = library_versions()};
  REQUIRE(write_summary(dir.path(), summary).ok());
  const json written = read(dir / "summary.json");
  CHECK(written["exit_reason"] == "early_stopping");
  CHECK(written["exit_code"] == 0);
  CHECK(written["steps"] == 2000);
  CHECK(written["epochs"] == 4.5);
  CHECK(written["wall_seconds"] == 123.5);
  CHECK(written["effective_fraction"] == 0.97);
  CHECK(written["final"] == json{{"val_loss", 1.5}, {"a\\x0ab", 1.0}});
  CHECK(written["best"] == json{{"val_loss", 1.25}});
  CHECK(written["best_step"] == 1800);
  CHECK(written["versions"]["libtorch"].get<std::string>().starts_with("2."));
  CHECK(written["versions"]["trainkit"].get<std::string>().find('.') != std::string::npos);
}

TEST_CASE("A run without an evaluation has no best step, and NaN is a string", "[logging][summary]") {
  const json written =
      json::parse(to_json(RunSummary{.final_metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()},
                                                       {"x", -std::numeric_limits<double>::infinity()}}}));
  CHECK(written["best_step"].is_null());
  CHECK(written["final"] == json{{"loss", "NaN"}, {"x", "-Infinity"}});
}

TEST_CASE("Scores are separate entries, and a dot creates an object", "[logging][summary]") {
  const json written = json::parse(to_json(RunSummary{
      .scores = {{"ndcg@10", 0.25}, {"popularity.mrr", 0.5}, {"popularity.ndcg@10", 0.125}, {"recall@10", 1}}}));
  CHECK(written["ndcg@10"] == 0.25);
  CHECK(written["recall@10"] == 1);
  CHECK(written["popularity"] == json{{"mrr", 0.5}, {"ndcg@10", 0.125}});
}

TEST_CASE("Warnings are listed; a run without one has no list", "[logging][summary]") {
  const json written = json::parse(to_json(RunSummary{.warnings = {"no validation pixel of Oats", "no test pixel"}}));
  CHECK(written["warnings"] == json{"no validation pixel of Oats", "no test pixel"});
  CHECK_FALSE(json::parse(to_json(RunSummary{})).contains("warnings"));
}

TEST_CASE("error.json contains the error, and a later success removes it", "[logging][summary]") {
  test::TempDir dir;
  const absl::Status error = to_status({.exit_code = ExitCode::kData,
                                        .id = "data.tokens",
                                        .where = "corpus.txt",
                                        .field = "WANDB_API_KEY",
                                        .problem = "bad",
                                        .got = "canary"});
  REQUIRE(write_error(dir.path(), error).ok());
  const json written = read(dir / "error.json");
  CHECK(written["exit_code"] == 4);
  CHECK(written["id"] == "data.tokens");
  CHECK(written.dump().find("canary") == std::string::npos);
  REQUIRE(write_summary(dir.path(), {.exit_reason = "error", .exit_code = 4}).ok());
  CHECK(std::filesystem::exists(dir / "error.json"));
  REQUIRE(write_summary(dir.path(), {}).ok());
  CHECK_FALSE(std::filesystem::exists(dir / "error.json"));
  REQUIRE(write_summary(dir.path(), {}).ok());
}

TEST_CASE("A missing folder is exit code 6", "[logging][summary]") {
  test::TempDir dir;
  CHECK(exit_code(write_summary(dir / "none", {})) == ExitCode::kStorage);
  CHECK(exit_code(write_error(dir / "none", absl::InternalError("x"))) == ExitCode::kStorage);
}

TEST_CASE("The facts of a run are lines, and a text without a name continues the one before", "[logging][summary]") {
  CHECK(to_text({{"strategy", "single on cpu"},
                 {"data", "3 rows"},
                 {"", "x (3, 4) Long"},
                 {"warning:", "slow"},
                 {"note", "a"},
                 {"note", "b"}}) ==
        "strategy   single on cpu\ndata       3 rows\n           x (3, 4) Long\nwarning: slow\nnote       a\nnote      "
        " b");
  CHECK(to_text({}).empty());
}

TEST_CASE("Long names of scores stay complete and distinct", "[logging][summary]") {
  const std::string begin(150, 'n');
  const auto json = nlohmann::json::parse(
      to_json(RunSummary{.scores = {{begin + "1", 1}, {begin + "2", 2}, {"m." + begin + "1", 3}}}));
  CHECK(json.at(begin + "1") == 1);
  CHECK(json.at(begin + "2") == 2);
  CHECK(json.at("m").at(begin + "1") == 3);
}
