// What a run of trainkit-gpt2rec keeps of its best epoch.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "gpt2_recommender/results.h"
#include "test_util.h"
#include "trainkit/train/checkpoint.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

/// A model of one number.
struct Number : torch::nn::Module {
  explicit Number(float value) : weight(register_parameter("weight", torch::full({1}, value))) {}
  at::Tensor weight;
};

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

}  // namespace

TEST_CASE("The best model that a checkpoint knows outlives better ones that were evaluated after it", "[apps][rec]") {
  const TempDir temp;
  const std::string dir = temp / "run";
  fs::create_directory(dir);
  {
    BestModel best = BestModel::open(dir, 0, true).value();
    REQUIRE(best.offer(4, 0.1, Number(4)).ok());
    REQUIRE(best.offer(8, 0.2, Number(8)).ok());
    save_checkpoint(dir, 10);
    REQUIRE(best.offer(12, 0.3, Number(12)).ok());
    REQUIRE(best.offer(14, 0.4, Number(14)).ok());
    CHECK(restored(best) == 14);
  }  // killed before the next save
  {
    BestModel resumed = BestModel::open(dir, 10, true).value();
    CHECK(resumed.step() == 8);
    CHECK(restored(resumed) == 8);
    CHECK(resumed.offer(13, 0.15, Number(13)).ok());  // not better than that of step 8
    CHECK(restored(resumed) == 8);
    REQUIRE(resumed.offer(15, 0.25, Number(15)).ok());
    CHECK(restored(resumed) == 15);
  }  // and killed again
  CHECK(restored(BestModel::open(dir, 10, true).value()) == 8);
  // One that is saved is taken as it is.
  BestModel best = BestModel::open(dir, 10, true).value();
  REQUIRE(best.offer(16, 0.5, Number(16)).ok());
  save_checkpoint(dir, 16);
  CHECK(restored(BestModel::open(dir, 16, true).value()) == 16);
  CHECK(BestModel::open(dir, 0, true).value().step() == -1);  // a run that starts afresh
}

TEST_CASE("A rank that does not write leaves the files as they are", "[apps][rec]") {
  const TempDir temp;
  BestModel best = BestModel::open(temp / "run", 0, false).value();
  CHECK(best.offer(4, 0.1, Number(4)).ok());
  CHECK(best.step() == 4);
  CHECK_FALSE(fs::exists(temp / "run" + "/best.safetensors"));
}
