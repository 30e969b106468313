// trainkit-gpt2rec with default settings learns from small data: its batch follows from the number of rows.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/rec/rec_given.h"
#include "apps/rec/rec_place.h"
#include "trainkit/core/random.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Writes 15 items of each of 300 users as pairs: 13 of the 20 items of the user's taste, 2 of the 200 items.
void write_tastes(const std::string& path) {
  std::ofstream file(path);
  for (uint64_t user = 0; user < 300; ++user) {
    RandomStream random(hash_key(11, user));
    std::set<uint64_t> items;
    while (items.size() < 13) items.insert(user % 10 * 20 + random.below(20));
    while (items.size() < 15) items.insert(random.below(200));
    for (const uint64_t item : items) file << "u" << user << ",i" << item << "\n";
  }
}

Ended run_default(const RecPlace& place, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--device", "cpu"});
  return run_to_end("trainkit-gpt2rec", flags, place.dir.path().string());
}

void make_demo_data(const RecPlace& place) {
  const Ended made =
      run_to_end("trainkit-gpt2rec", {"--make_demo_data", place.dir / "demo"}, place.dir.path().string());
  INFO(made.errors);
  REQUIRE(made.code == 0);
}

}  // namespace

TEST_CASE("300 users with 15 items each: default flags reach hit@10 of 0.6", "[apps][rec][slow]") {
  const RecPlace place;
  write_tastes(place.dir / "pairs.csv");
  const Ended ended = run_default(place, {"--data_dir", place.dir / "pairs.csv", "--output_dir", place.dir / "run"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  CHECK(summary.at("popularity").at("hit@10") < 0.3);
  CHECK(summary.at("hit@10") >= 0.6);
}

TEST_CASE("Weight decay is decoupled: bpr_mf learns with a decay of 0.01", "[apps][rec]") {
  const RecPlace place;
  write_tastes(place.dir / "pairs.csv");
  const Ended ended = run_default(place, {"--data_dir", place.dir / "pairs.csv", "--output_dir", place.dir / "run",
                                          "--model", "bpr_mf", "--weight_decay", "0.01"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  CHECK(summary.at("hit@10") >= 0.6);
}

TEST_CASE("The default batch gives at least 20 steps per epoch; a given batch stays", "[apps][rec]") {
  const RecPlace place;
  write_tastes(place.dir / "pairs.csv");
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--data_dir", place.dir / "pairs.csv", "--output_dir", place.dir / "run", "--dry_run"});
    const Ended ended = run_default(place, more);
    INFO(ended.errors);
    CHECK(ended.code == 0);
    return ended.output;
  };
  using Catch::Contains;
  const std::string reason =
      "128 rows per step instead of 2048: 3900 training rows give 31 steps per epoch, at least 20";
  CHECK_THAT(plan({}), Contains(reason) && Contains("128 per device x 1 device x 1 accumulated = 128 per step") &&
                           Contains("31 batches per epoch"));
  CHECK_THAT(plan({"--batch_size", "auto"}), Contains(reason) && Contains("= 128 per step"));
  CHECK_THAT(plan({"--parallel", "4"}), Contains("32 per device x 4 devices x 1 accumulated = 128 per step"));
  CHECK_THAT(plan({"--parallel", "3"}), Contains("42 per device x 3 devices x 1 accumulated = 126 per step"));
  CHECK_THAT(plan({"--grad_accum_steps", "2"}), Contains("64 per device x 1 device x 2 accumulated = 128 per step"));
  for (const std::vector<std::string>& given : {std::vector<std::string>{"--batch_size", "2048"},
                                                {"--global_batch_size", "2048"},
                                                {"--preset", "over_8gib", "--parallel", "1"}}) {
    CHECK_THAT(plan(given), !Contains("instead of") && Contains("= 2048 per step"));
  }
  const auto json = nlohmann::json::parse(plan({"--json"}));
  CHECK(json.at("plan").at("global_batch_size") == 128);
}

TEST_CASE("A continued run keeps its batch", "[apps][rec]") {
  const RecPlace place;
  const std::vector<std::string> own = {
      "--data_dir", place.dir / "ml-1m", "--output_dir", place.dir / "run", "--model", "bpr_mf", "--epochs", "1"};
  const Ended first = run_default(place, own);
  INFO(first.errors);
  REQUIRE(first.code == 0);
  CHECK_THAT(read_text(place.dir / "run" + "/config.yaml"), Catch::Contains("global_batch_size: 32"));
  const Ended resumed = run_default(place, {"--output_dir", place.dir / "run", "--resume", "latest", "--epochs", "2"});
  INFO(resumed.errors);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.output, Catch::Contains("= 32 per step") && !Catch::Contains("instead of"));
}

TEST_CASE("bpr_mf with default flags reaches 1.1 times the NDCG of popularity on the demo data", "[apps][rec]") {
  const RecPlace place;
  make_demo_data(place);
  const Ended ended = run_default(
      place, {"--data_dir", place.dir / "demo/ml-1m", "--output_dir", place.dir / "run", "--model", "bpr_mf"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.output.find("popularity_ndcg@10") != std::string::npos);  // next to each validation
  CHECK(ended.output.find("most popular items to everyone") == std::string::npos);
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  CHECK(summary.at("ndcg@10") >= 1.1 * summary.at("popularity").at("ndcg@10").get<double>());
}

TEST_CASE("A warning says that the model ranks worse than popularity", "[apps][rec]") {
  const RecPlace place;
  make_demo_data(place);
  const Ended ended = run_default(place, {"--data_dir", place.dir / "demo/ml-1m", "--output_dir", place.dir / "run",
                                          "--model", "bpr_mf", "--epochs", "1", "--lr", "1e-7"});
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.output, Catch::Contains("warning: ndcg@10 of the model is lower than that of recommending the most "
                                           "popular items to everyone: 0.") &&
                               Catch::Contains(" in validation, 0.") && Catch::Contains(" in the test; try another"));
}

TEST_CASE("Decay and patience follow the number of rows; given values stay, and a resumed run keeps its own",
          "[apps][rec]") {
  const RecPlace place;
  write_tastes(place.dir / "pairs.csv");
  const auto config_of = [&](std::vector<std::string> more, const std::string& folder) {
    more.insert(more.end(), {"--data_dir", place.dir / "pairs.csv", "--output_dir", place.dir / folder, "--model",
                             "bpr_mf", "--epochs", "1"});
    const Ended ended = run_default(place, more);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output + read_text(place.dir / folder + "/config.yaml");
  };
  using Catch::Contains;
  CHECK_THAT(config_of({}, "a"), Contains("--embedding_decay 1 for 3900 training rows, --early_stopping 40") &&
                                     Contains("embedding_decay: 1 ") && Contains("early_stopping: 40"));
  CHECK_THAT(config_of({"--weight_decay", "0", "--early_stopping", "7"}, "b"),
             !Contains("training rows,") && !Contains("embedding_decay: 1") && Contains("early_stopping: 7"));
  CHECK_THAT(config_of({"--embedding_decay", "0.5"}, "c"), Contains("embedding_decay: 0.5"));
  const Ended resumed = run_default(place, {"--output_dir", place.dir / "c", "--resume", "latest", "--epochs", "2"});
  INFO(resumed.errors);
  CHECK(resumed.code == 0);
  CHECK_THAT(read_text(place.dir / "c" + "/config.yaml"), Contains("embedding_decay: 0.5"));
}
