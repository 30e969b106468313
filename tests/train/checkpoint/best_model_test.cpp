#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "test_util.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

/// A model with a single parameter.
struct Number : torch::nn::Module {
  explicit Number(float value) : weight(register_parameter("weight", torch::full({1}, value))) {}
  at::Tensor weight;
};

const BestModelOptions kScore = {.metric = "f1", .higher_is_better = true};

BestModel open(const std::string& dir, const std::string& resume = "") {
  return BestModel::open(dir, resume, kScore).value();
}

void offer(BestModel& best, int64_t step, double value) {
  const absl::Status kept = best.offer(step, value, Number(static_cast<float>(step)));
  INFO(kept);
  REQUIRE(kept.ok());
}

float restored(const BestModel& best) {
  Number model(-1);
  REQUIRE(best.restore(model).value());
  return model.weight.item<float>();
}

void save_checkpoint(const std::string& dir, int64_t step) {
  auto store = CheckpointStore::open(dir, {}).value();
  const absl::Status saved = store.save(step, {.model = {{"weight", torch::zeros({1})}}, .optimizer = {}, .state = {}});
  REQUIRE(saved.ok());
}

std::string make_folder(const TempDir& temp, const std::string& name = "run") {
  fs::create_directory(temp / name);
  return temp / name;
}

}  // namespace

TEST_CASE("The best model recorded in a checkpoint survives better ones that were evaluated after it",
          "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  {
    BestModel best = open(dir);
    offer(best, 4, 0.1);
    offer(best, 8, 0.2);
    save_checkpoint(dir, 10);
    offer(best, 12, 0.3);
    offer(best, 14, 0.4);
    CHECK(restored(best) == 14);
  }  // killed before the next save
  {
    BestModel resumed = open(dir, "latest");
    CHECK(resumed.step() == 8);
    CHECK(resumed.value() == 0.2);
    CHECK(restored(resumed) == 8);
    offer(resumed, 13, 0.15);  // not better than that of step 8
    CHECK(restored(resumed) == 8);
    offer(resumed, 15, 0.25);
    CHECK(restored(resumed) == 15);
  }  // and killed again
  CHECK(restored(open(dir, "latest")) == 8);
  // Resuming from a saved best model keeps it unchanged.
  BestModel best = open(dir, "latest");
  offer(best, 16, 0.5);
  save_checkpoint(dir, 16);
  CHECK(restored(open(dir, "latest")) == 16);
}

TEST_CASE("A run resumed from an earlier checkpoint forgets the best weights of the steps after it",
          "[train][best_model]") {
  const bool has_checkpoint_of_best = GENERATE(true, false);
  const TempDir temp;
  const std::string dir = make_folder(temp);
  const auto save = [&](int64_t step) {
    auto store = CheckpointStore::open(dir, {.keep_last = 0}).value();
    REQUIRE(store
                .save(step, {.model = {{"weight", torch::full({1}, static_cast<float>(step))}},
                             .optimizer = {},
                             .state = {{"trainer.best_step", int64_t{4}}, {"trainer.best.f1", 0.5}}})
                .ok());
  };
  {
    BestModel best = open(dir);
    offer(best, 4, 0.5);
    if (has_checkpoint_of_best) save(4);
    save(6);
    offer(best, 8, 0.6);
    save(10);
    offer(best, 12, 0.7);
    save(12);
  }
  BestModel best = open(dir, dir + "/checkpoints/step-00000006");
  CHECK(best.value() == 0.5);
  CHECK(best.lost() == !has_checkpoint_of_best);
  CHECK(best.step() == (has_checkpoint_of_best ? 4 : -1));
  CHECK(fs::exists(dir + "/best.safetensors") == has_checkpoint_of_best);
  offer(best, 8, 0.4);  // not better than that of step 4
  if (has_checkpoint_of_best) CHECK(restored(best) == 4);
  offer(best, 9, 0.55);
  CHECK(restored(best) == 9);
  CHECK_FALSE(best.lost());
}

TEST_CASE("A run that resumes from its last checkpoint discards best models found after that checkpoint",
          "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  BestModel best = open(dir);
  offer(best, 4, 0.1);
  save_checkpoint(dir, 6);
  offer(best, 8, 0.5);
  SECTION("a better result for the same step as in the checkpoint") {
    offer(best, 8, 0.2);
    CHECK(best.step() == 8);
    CHECK(best.value() == 0.2);
    offer(best, 10, 0.3);
    CHECK(restored(best) == 10);
  }
  SECTION("the result recorded in the checkpoint") {
    offer(best, 7, 0.05);
    CHECK(best.step() == 4);
    CHECK(best.value() == 0.1);
    CHECK(restored(best) == 4);
  }
  CHECK(open(dir, "latest").value() == 0.1);
}

TEST_CASE("Evaluating the same step again is not a rollback while the checkpoint has it or there is no checkpoint",
          "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  BestModel best = open(dir);
  offer(best, 4, 0.5);
  offer(best, 4, 0.2);
  CHECK(best.value() == 0.5);
  save_checkpoint(dir, 4);
  offer(best, 4, 0.2);
  CHECK(best.value() == 0.5);
}

TEST_CASE("A new run ignores the best model of the run before it", "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  {
    BestModel best = open(dir);
    offer(best, 2, 0.9);
    save_checkpoint(dir, 3);
    offer(best, 4, 0.95);
  }
  Number model(-1);
  BestModel best = open(dir);
  CHECK(best.step() == -1);
  CHECK_FALSE(best.restore(model).value());
  CHECK(model.weight.item<float>() == -1);
  // Its first evaluation comes after a checkpoint, which has no best model.
  save_checkpoint(dir, 5);
  offer(best, 6, 0.1);
  CHECK(open(dir, "latest").step() == -1);
}

TEST_CASE("Lower is better by default; ties keep the first model, and NaN is never the best", "[train][best_model]") {
  const TempDir temp;
  BestModel best = BestModel::open(make_folder(temp), "", {}).value();
  offer(best, 1, std::nan(""));
  CHECK(best.step() == -1);
  offer(best, 2, 0.5);
  offer(best, 3, 0.7);
  offer(best, 4, 0.5);
  offer(best, 5, std::nan(""));
  CHECK(restored(best) == 2);
  offer(best, 6, 0.4);
  CHECK(restored(best) == 6);
}

TEST_CASE("A run resumed from another folder's checkpoint copies its best model", "[train][best_model]") {
  const TempDir temp;
  const std::string first = make_folder(temp, "first"), second = make_folder(temp, "second");
  {
    BestModel best = open(first);
    offer(best, 4, 0.5);
    save_checkpoint(first, 5);
  }
  BestModel best = open(second, first);
  CHECK(best.step() == 4);
  offer(best, 8, 0.3);
  CHECK(restored(best) == 4);
  CHECK(fs::exists(first + "/best.safetensors"));
  // The other run may have continued meanwhile.
  {
    BestModel later = open(first, "latest");
    offer(later, 9, 0.9);
  }
  CHECK(restored(open(make_folder(temp, "third"), first)) == 4);
}

TEST_CASE("A rank that does not write leaves the files unchanged and keeps nothing", "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  BestModel writer = open(dir);
  offer(writer, 2, 0.2);
  BestModelOptions options = kScore;
  options.writes = false;
  BestModel best = BestModel::open(dir, "", options).value();
  offer(best, 4, 0.4);
  Number model(-1);
  CHECK_FALSE(best.restore(model).value());
  CHECK(restored(writer) == 2);
}

TEST_CASE("Metadata that is not a number is an error that names it", "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  save_checkpoint(dir, 30);
  for (const auto& [step, score] : {std::pair("12x", "0.5"), {"12", "0.5 "}, {"", "0.5"}, {"12", "best"}}) {
    const absl::Status written = save_safetensors(Fs::posix(), dir + "/best.safetensors",
                                                  {{"weight", torch::zeros({1})}}, {{"step", step}, {"f1", score}});
    REQUIRE(written.ok());
    const absl::Status refused = BestModel::open(dir, "latest", kScore).status();
    CHECK(exit_code(refused) == ExitCode::kWeights);
    CHECK_THAT(error_line(refused), Catch::Contains("is not a number"));
  }
}

TEST_CASE("A folder that cannot be written to and a damaged file are errors with their exit codes",
          "[train][best_model]") {
  const TempDir temp;
  const std::string dir = make_folder(temp);
  BestModel best = open(dir);
  offer(best, 2, 0.2);
  save_checkpoint(dir, 3);
  fs::resize_file(best.path(), 5);
  Number model(-1);
  CHECK(exit_code(best.restore(model).status()) == ExitCode::kWeights);
  CHECK(model.weight.item<float>() == -1);
  CHECK(exit_code(BestModel::open(dir, "latest", kScore).status()) == ExitCode::kWeights);
  BestModel nowhere = open(temp / "nowhere");
  CHECK(exit_code(nowhere.offer(1, 0.5, Number(1))) == ExitCode::kStorage);
}

TEST_CASE("BestModel refuses a metric called step, the key of the step in its file", "[train][best_model]") {
  const TempDir temp;
  const absl::Status status = BestModel::open(make_folder(temp), "", {.metric = "step"}).status();
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK_THAT(error_text(status), Catch::Contains("must not be 'step'"));
}
