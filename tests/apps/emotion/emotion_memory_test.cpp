// Device memory of trainkit-emotion.
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "apps/emotion/emotion_given.h"
#include "train/planning/computed_step.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/step_memory.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

StepRecipe recipe_of(const emotion::Session& session) {
  StepRecipe recipe = session.recipe();
  recipe.make_optimizer = [] { return std::make_unique<AdamW>(AdamWOptions{}); };
  return recipe;
}

}  // namespace

TEST_CASE(
    "The peak memory of a step is predicted within 1 % of the counted peak: each size, modality and fusion, fp32 and "
    "bf16",
    "[apps][emotion][memory]") {
  const EmotionPlace place;
  std::vector<std::vector<std::string>> models;
  for (const std::string size : {"simple", "complex", "huge"}) models.push_back({"--model_size", size});
  for (const std::string modality : {"visual", "audio"}) models.push_back({"--modality", modality});
  for (const std::string fusion : {"concat", "gated"}) models.push_back({"--fusion_type", fusion});
  if (!is_full()) models = {models[0], models[4], models[6]};
  const std::vector<int64_t> sizes = is_full() ? std::vector<int64_t>{7, 22, 33} : std::vector<int64_t>{22};
  for (const auto& model : models) {
    const Given given(place, model);
    const emotion::Session session = given.open();
    StepRecipe recipe = recipe_of(session);
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      recipe.step.precision = precision;
      const auto record = [&](int64_t rows) { return record_step_memory(recipe, rows, 1); };
      const MemoryEstimate estimate = MemoryEstimate::create(record).value();
      for (const int64_t rows : sizes) {
        INFO(model[1] << " " << model.back() << ", " << rows << " rows, precision " << static_cast<int>(precision)
                      << ", bases checked at " << estimate.check_batch_size());
        const auto counted = static_cast<double>(record_step_memory(test::computed(recipe), rows, 1)
                                                     .value()
                                                     .without(MemoryClass::kWorkspace)
                                                     .peak()
                                                     .total());
        CHECK(static_cast<double>(estimate.predict(rows).peak.total()) == Approx(counted).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("Each suggestion of the ladder takes less memory: a smaller model, fewer frames, smaller frames",
          "[apps][emotion][memory]") {
  const EmotionPlace place;
  const Given given(place, {"--model_size", "huge", "--image_size", "64", "--frames", "4"});
  const emotion::Session session = given.open();
  const StepRecipe recipe = recipe_of(session);
  const auto peak = [](const StepRecipe& some) { return record_step_memory(some, 6, 1).value().peak().total(); };
  const int64_t own = peak(recipe);
  std::vector<std::string> offered;
  for (const auto& [flag, change] : recipe.smaller) {
    INFO(flag);
    offered.push_back(flag);
    StepRecipe other = recipe;
    change(other);
    CHECK(peak(other) < own);
  }
  CHECK(offered ==
        std::vector<std::string>{"--model_size complex", "--model_size simple", "--frames 2", "--image_size 32"});
  const Given sound(place, {"--modality", "audio", "--model_size", "simple"});
  CHECK(sound.open().recipe().smaller.empty());
}
