// trainkit-gpt2rec interrupted at random moments: a few times, or hundreds of times with TRAINKIT_TEST_FULL (./dev test
// --full).
#include <nlohmann/json.hpp>

#include "apps/continued.h"
#include "apps/interruptions.h"
#include "apps/rec/rec_place.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("Runs of trainkit-gpt2rec interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][rec][resume]") {
  const RecPlace place;
  const std::vector<std::string> more = {"--epochs",     "12",  "--save_every",     "8",
                                         "--eval_every", "10",  "--early_stopping", "0",
                                         "--ema",        "0.9", "--optimizer",      GENERATE("adamw", "sparse_adam")};
  verify_resume("trainkit-gpt2rec", place.flags("", more), place.dir);
}

TEST_CASE("A run of trainkit-gpt2rec continues from its folder alone, and a refused one changes no file",
          "[apps][rec][resume]") {
  const RecPlace place;
  const auto flags = [&](const std::string& run, const std::string& steps) {
    return place.flags(run, {"--max_steps", steps, "--epochs", "100", "--early_stopping", "0", "--save_every", "3",
                             "--eval_every", "3", "--scheduler", "constant", "--warmup_steps", "0", "--ema", "0.9"});
  };
  check_continued({.program = "trainkit-gpt2rec",
                   .flags = flags("run", "6"),
                   .whole_flags = flags("whole", "9"),
                   .run = place.dir / "run",
                   .whole = place.dir / "whole",
                   .fixed = {"--embed_dim", "4"},
                   .change_data =
                       [&] {
                         const DemoRatingsOptions other{.users = 60, .items = 50, .ratings_per_user = 16, .seed = 3};
                         REQUIRE(write_demo_ratings(place.dir.path().string(), other).ok());
                       }},
                  place.dir);
}

TEST_CASE("A continued run of trainkit-gpt2rec keeps the protocol that selects the best weights",
          "[apps][rec][resume]") {
  const RecPlace place;
  const std::string folder = place.dir.path().string();
  const std::vector<std::string> more = {"--sampled_negatives", "10", "--max_steps", "4"};
  REQUIRE(run_to_end("trainkit-gpt2rec", place.flags("run", more), folder).code == 0);
  std::ofstream(place.dir / "negatives") << "1 2\n";
  const auto files = files_of(place.dir / "run");
  for (const std::vector<std::string>& changed : {std::vector<std::string>{"--sampled_negatives", "11"},
                                                  {"--sampled_for", "user"},
                                                  {"--validation_negatives", place.dir / "negatives"}}) {
    std::vector<std::string> words = {"--output_dir", place.dir / "run", "--resume", "latest"};
    words.insert(words.end(), changed.begin(), changed.end());
    const Ended refused = run_to_end("trainkit-gpt2rec", words, folder);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.errors, Catch::Contains(changed[0] + ": cannot change when a run is continued"));
    CHECK(files_of(place.dir / "run") == files);
  }
}

TEST_CASE("Resuming a run that ended by early stopping says so and changes no file", "[apps][rec][resume]") {
  const RecPlace place;
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-gpt2rec", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const std::string run = place.dir / "run";
  const auto summary = [&] { return nlohmann::json::parse(read_text(run + "/summary.json")); };
  start(place.flags("run", {"--epochs", "100", "--early_stopping", "1", "--eval_every", "2", "--lr", "1e-12"}));
  REQUIRE(summary().at("steps") == 4);
  const auto files = files_of(run);
  CHECK_THAT(start({"--output_dir", run, "--resume", "latest"}),
             Catch::Contains("is finished by early stopping; to continue it, raise --early_stopping"));
  CHECK(files_of(run) == files);
  start({"--output_dir", run, "--resume", "latest", "--early_stopping", "2"});
  CHECK(summary().at("steps") == 6);
}

TEST_CASE("recommend of a run of trainkit-gpt2rec with --ema uses the average of the weights", "[apps][rec][resume]") {
  const RecPlace place;
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-gpt2rec", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  start(place.flags("run", {"--ema", "0.9", "--keep_last", "0"}));
  check_average(place.dir / "run", [&](const std::string& run) {
    start({"recommend", run, "--all_users", place.dir / "all.csv", "--overwrite", "--device", "cpu"});
    return read_text(place.dir / "all.csv");
  });
}

TEST_CASE("trainkit-gpt2rec keeps and tests the best weights when training makes them worse", "[apps][rec][resume]") {
  const RecPlace place;
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_to_end("trainkit-gpt2rec", words, place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
  };
  const auto summary = [&] { return nlohmann::json::parse(read_text(place.dir / "run/summary.json")); };
  start(place.flags("run", {"--max_steps", "100", "--epochs", "100", "--eval_every", "50", "--save_every", "50"}));
  const auto before = summary();
  start({"--output_dir", place.dir / "run", "--resume", "latest", "--max_steps", "102", "--eval_every", "1", "--lr",
         "100"});
  const auto after = summary();
  CHECK(after.at("steps") == 102);
  CHECK(after.at("best_step") == before.at("best_step"));
  for (const char* score : {"ndcg@10", "recall@10", "mrr"}) CHECK(after.at(score) == before.at(score));
  CHECK(after.at("final").at("val_ndcg@10") < after.at("best").at("val_ndcg@10"));
  const auto lists = [&](const std::string& run) {
    start({"recommend", run, "--all_users", place.dir / "all.csv", "--overwrite", "--device", "cpu"});
    return read_text(place.dir / "all.csv");
  };
  CHECK(lists(place.dir / "run") != lists(place.dir / "run/checkpoints"));
}
