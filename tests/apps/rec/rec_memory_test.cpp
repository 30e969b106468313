// Memory of trainkit-gpt2rec's steps, and its behaviour when memory runs out.
#include <malloc.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "apps/rec/rec_given.h"
#include "apps/rec/rec_place.h"
#include "test_util.h"
#include "train/planning/computed_step.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/step_memory.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

StepRecipe recipe_of(const RecGiven& settings, const rec::Session& session) {
  StepRecipe recipe =
      session.recipe(settings.placement, session.feed(Part::kTrain, settings.run, settings.placement).value());
  recipe.make_optimizer = [] { return std::make_unique<AdamW>(AdamWOptions{}); };
  return recipe;
}

int64_t counted(const StepRecipe& recipe, int64_t rows) {
  return record_step_memory(test::computed(recipe), rows, 1).value().without(MemoryClass::kWorkspace).peak().total();
}

}  // namespace

TEST_CASE(
    "The peak memory of a step is predicted within 1 % of the counted peak: every mode of the recommender, fp32 and "
    "bf16",
    "[apps][rec][memory]") {
  for (const std::vector<std::string>& mode : {std::vector<std::string>{"--model", "bpr_mf"},
                                               {"--use_cache"},
                                               {"--no-use_cache"},
                                               {"--no-freeze_gpt2"},
                                               {"--lora_rank", "4"},
                                               {"--use_cache", "--negatives", "in_batch"}}) {
    RecGiven settings(planned(mode));
    const rec::Session session = settings.open();
    StepRecipe recipe = recipe_of(settings, session), whole = recipe;
    whole.fill_caches = nullptr;  // GPT-2 processes all texts in the first step
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      recipe.step.precision = whole.step.precision = precision;
      const auto estimate =
          MemoryEstimate::create([&](int64_t rows) { return record_step_memory(recipe, rows, 1); }).value();
      for (const int64_t rows : {16, 33, 64, 127, 160}) {
        INFO(mode.front() << ", " << rows << " rows, precision " << static_cast<int>(precision) << ", checked at "
                          << estimate.check_batch_size());
        CHECK(static_cast<double>(estimate.predict(rows).peak.total()) ==
              Approx(static_cast<double>(counted(whole, rows))).epsilon(0.01));
      }
    }
  }
}

TEST_CASE("GPT-2's cached output has class cache: a vector of its width per text", "[apps][rec][memory]") {
  for (const bool cached : {true, false}) {
    RecGiven settings(planned({cached ? "--use_cache" : "--no-use_cache"}));
    const rec::Session session = settings.open();
    const int64_t texts = session.interactions().num_users() + session.interactions().num_items();
    const MemoryBytes standing = record_step_memory(recipe_of(settings, session), 8, 1).value().live();
    const int64_t tokens = texts * settings.options.sizes.n_positions * 2 * 8;  // ids and mask, while they are in use
    CHECK(standing[MemoryClass::kCache] == (cached ? texts * 32 * 4 : tokens));
  }
}

TEST_CASE("A GPU plan includes the gradients of BPR-MF as dense tensors", "[apps][rec][memory]") {
  RecGiven settings(planned({"--model", "bpr_mf"}));
  const rec::Session session = settings.open();
  StepRecipe recipe = recipe_of(settings, session);
  recipe.for_gpu = true;
  const MemoryBytes peak = record_step_memory(recipe, 8, 1).value().peak();
  CHECK(peak[MemoryClass::kGradients] > peak[MemoryClass::kWeights] / 2);  // the larger table's gradients
}

TEST_CASE("The ladder has the guides' suggestions in order, each with its memory", "[apps][rec][memory]") {
  RecGiven settings(planned(
      {"--use_cache", "--max_tokens", "4", "--plan_devices", "2", "--batch_size", "64", "--gpu_memory", "1GiB"}));
  const rec::Session session = settings.open();
  const MemoryPlan memory =
      plan_memory(settings.parser, settings.run, MachineInfo{}, recipe_of(settings, session), settings.placement)
          .value();
  const std::string ladder = memory.ladder();
  INFO(ladder);
  size_t at = 0;
  for (const char* rung :
       {"--batch_size 32 ", "--embed_dim 8 ", "--n_embd 16 ", "--n_layer 1 ", "--batch_size 32 --grad_accum_steps 2 ",
        "--no-use_cache ", "4 devices instead of 2", "1 device instead of 2", "a device has"}) {
    INFO(rung);
    const size_t found = ladder.find(std::string("\n  ") + rung, at);
    REQUIRE(found != std::string::npos);
    CHECK(ladder.substr(found + 1, ladder.find('\n', found + 1) - found - 1).ends_with("iB"));
    at = found;
  }
}

TEST_CASE("A run prints its predicted and measured memory, and chooses its batch", "[apps][rec][memory]") {
  const RecPlace place;
  const auto run = [&](std::vector<std::string> more) {
    const Ended ended = run_to_end("trainkit-gpt2rec", place.flags("run", std::move(more)), place.dir.path().string());
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  CHECK_THAT(run({"--epochs", "1"}),
             Catch::Contains("predicted per device at the peak") && Catch::Contains("predicted at the peak of a step"));
  CHECK_THAT(run({"--epochs", "1", "--overwrite", "--batch_size", "auto", "--global_batch_size", "96"}),
             Catch::Contains("48") && Catch::Contains("= 96"));
  CHECK_THAT(run({"--dry_run", "--overwrite", "--measure"}), Catch::Contains("measured on this processor"));
  CHECK_THAT(run({"--dry_run", "--overwrite"}), !Catch::Contains("measured on"));
}

TEST_CASE("A session holds no rows of the file and no times after the split", "[apps][rec]") {
  constexpr int64_t kUsers = 1000, kEventsEach = 200;
  const TempDir dir;
  {
    std::ofstream file(dir / "events.inter");
    file << "user_id:token\titem_id:token\ttimestamp:float\n";
    for (int64_t i = 0; i < kUsers * kEventsEach; ++i) {
      const int64_t user = i % kUsers, item = (user * 7 + i / kUsers) % 500;
      file << user << '\t' << item << '\t' << i << '\n';
    }
  }
  const auto held = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  const int64_t before = held();
  const rec::Session session = RecGiven({"--data_dir", dir / "events.inter", "--model", "bpr_mf"}).open();
  CHECK(session.interactions().size() == kUsers * kEventsEach);
  CHECK(held() - before < 28 * kUsers * kEventsEach);  // with the rows 32 bytes more for each event, with times 16
}
