// Scoring of trainkit-emotion: the epoch with the best validation score, and the metrics logged during training.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "apps/emotion/emotion_place.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

std::vector<LogRecord> records(const std::string& folder, const std::string& split) {
  std::vector<LogRecord> list = read_jsonl(folder + "/metrics.jsonl").value();
  std::erase_if(list, [&](const LogRecord& record) { return record.split != split; });
  return list;
}

/// All bytes of the files in a folder whose names contain `part`.
std::string bytes_of_files(const std::string& folder, const std::string& part) {
  std::string all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename().string().find(part) != std::string::npos) all += read_text(entry.path().string());
  }
  return all;
}

/// Checks on `ranks` ranks that a run whose best validation epoch is not its last is scored with that epoch.
void check_scored_by_the_best(int ranks) {
  const EmotionPlace place;
  // The test clips are copies of the validation clips, so that both weighted F1 are equal.
  const std::string test = place.data + "/output_repeated_splits_test";
  fs::remove_all(test);
  fs::copy(place.data + "/dev_splits_complete", test);
  fs::copy_file(place.data + "/dev_sent_emo.csv", place.data + "/test_sent_emo.csv",
                fs::copy_options::overwrite_existing);
  const std::string run = place.dir / "run";
  Ended ended = {};
  double best = -1;
  int64_t best_step = 0;
  // Learning rates so high that the score jumps between evaluations; a run whose last epoch is its best proves nothing.
  bool last_is_best = true;
  for (int seed = 0; last_is_best && seed < 5; ++seed) {
    const std::vector<std::string> flags =
        place.flags("run",
                    {"--overwrite", "--seed", std::to_string(seed), "--epochs", "5", "--eval_every", "1",
                     "--batch_size", std::to_string(14 / ranks), "--lr_audio", "0.01", "--lr_fusion", "0.01",
                     "--scheduler", "constant", "--warmup_steps", "0"},
                    /*sound=*/true);
    if (ranks == 1) {
      ended = run_emotion(place.dir, flags);
    } else {
      std::vector<std::string> words = {"launch", "--nproc_per_node", std::to_string(ranks), "--",
                                        std::string(TRAINKIT_BIN_DIR) + "/trainkit-emotion"};
      words.insert(words.end(), flags.begin(), flags.end());
      ended = run_to_end("trainkit", words, place.dir.path().string());
    }
    INFO(ended.errors << ended.output);
    REQUIRE(ended.code == 0);
    const auto evaluations = records(run, "val");
    REQUIRE(evaluations.size() == 15);
    best = -1;
    for (const LogRecord& record : evaluations) {
      if (*record.find("weighted_f1") > best) best = *record.find("weighted_f1"), best_step = record.step;
    }
    last_is_best = *evaluations.back().find("weighted_f1") == best;
  }
  REQUIRE_FALSE(last_is_best);
  const auto scores = json_of(run + "/results/scores.json"), summary = json_of(run + "/summary.json");
  CHECK(scores.at("best").at("step") == best_step);
  CHECK(scores.at("best").at("val_weighted_f1") == best);
  CHECK(scores.at("weighted_f1") == best);
  CHECK(summary.at("best_step") == best_step);
  CHECK(summary.at("weighted_f1") == best);
  CHECK(ended.output.find("with the weights of step " + std::to_string(best_step) + ",") != std::string::npos);
  REQUIRE(records(run, "test").size() == 1);
  CHECK(*records(run, "test")[0].find("weighted_f1") == best);
}

}  // namespace

TEST_CASE("The test is scored with the weights of the epoch with the best weighted F1 of validation",
          "[apps][emotion]") {
  check_scored_by_the_best(/*ranks=*/1);
}

TEST_CASE("Each of two ranks scores its share of the test with the weights of the best epoch", "[apps][emotion]") {
  check_scored_by_the_best(/*ranks=*/2);
}

TEST_CASE("The guide's preset with three replicas logs losses, accuracies, three learning rates and gradient norms",
          "[apps][emotion]") {
  const EmotionPlace place;
  std::vector<std::string> flags =
      place.flags("run", {"--preset", "multi_gpu_3x4090", "--device", "cpu", "--batch_size", "7", "--num_workers", "2",
                          "--epochs", "2", "--log_every", "1", "--tensorboard_dir", place.dir / "logs"});
  std::erase(flags, "--no-use_tensorboard");
  const Ended ended = run_emotion(place.dir, flags);
  INFO(ended.errors << ended.output);
  REQUIRE(ended.code == 0);
  const std::string run = place.dir / "run";
  const auto steps = records(run, "train"), evaluations = records(run, "val");
  REQUIRE(steps.size() == 4);
  REQUIRE(evaluations.size() == 2);
  for (const LogRecord& record : steps) {
    for (const char* name : {"loss", "accuracy", "grad_norm", "samples_per_second", "data_wait_fraction"}) {
      INFO(name);
      REQUIRE(record.find(name));
      CHECK(std::isfinite(*record.find(name)));
    }
    CHECK(*record.find("grad_norm") > 0);
    // Weights with and without decay: the encoders' rate, and ten times that rate for the fusion layers.
    const std::set<double> rates(record.lr.begin(), record.lr.end());
    REQUIRE(record.lr.size() == 6);
    CHECK(*rates.rbegin() == Approx(10 * *rates.begin()));
    CHECK(*rates.rbegin() <= 3e-3);
    CHECK(*rates.begin() > 0);
  }
  for (const LogRecord& record : evaluations) {
    for (const char* name : {"loss", "accuracy", "weighted_f1", "macro_f1"}) {
      INFO(name);
      CHECK(record.find(name));
    }
  }
  const std::string events = bytes_of_files(place.dir / "logs", "tfevents");
  for (const char* tag : {"train/loss", "val/loss", "train/accuracy", "val/accuracy", "train/grad_norm",
                          "val/weighted_f1", "train/lr", "train/lr/2", "machine/queue_depth", "test/weighted_f1"}) {
    INFO(tag);
    CHECK(events.find(tag) != std::string::npos);
  }
}

TEST_CASE("A plateau of the validation's weighted F1 lowers all learning rates", "[apps][emotion]") {
  const EmotionPlace place;
  const auto factors = [&](const std::string& patience) {
    // Learning rates too small to learn anything: no evaluation is better than the first.
    const Ended ended = run_emotion(
        place.dir, place.flags("run" + patience,
                               {"--scheduler", "plateau", "--patience", patience, "--factor", "0.5", "--lr", "1e-7",
                                "--epochs", "8", "--batch_size", "42", "--log_every", "1", "--warmup_steps", "0"},
                               /*sound=*/true));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    std::vector<double> all;
    for (const LogRecord& record : records(place.dir / "run" + patience, "train")) {
      const std::set<double> rates(record.lr.begin(), record.lr.end());
      REQUIRE(rates.size() == 2);
      CHECK(*rates.rbegin() == Approx(10 * *rates.begin()));
      all.push_back(*rates.rbegin() / 1e-7);
    }
    return all;
  };
  const std::vector<double> lowered = factors("0"), kept = factors("10");
  REQUIRE(lowered.size() == 8);
  CHECK(lowered.front() == Approx(1));
  CHECK(lowered.back() <= 0.5 + 1e-9);
  for (const double factor : lowered) CHECK(std::log2(factor) == Approx(std::round(std::log2(factor))).margin(1e-6));
  for (const double factor : kept) CHECK(factor == Approx(1));
}
