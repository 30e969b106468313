#include <torch/torch.h>

#include "apps/hsi/hsi_place.h"
#include "hsi_classification/models.h"
#include "hsi_classification/session.h"
#include "test_util.h"
#include "train/planning/computed_step.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/nn/functional.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/step_memory.h"

namespace trainkit {

using namespace trainkit::hsi;
namespace {

StepRecipe recipe_of(const std::string& model) {
  const HsiModelOptions options{
      .model = model, .bands = model == "ssrn" ? 40 : 30, .patch_size = model == "ssrn" ? 7 : 11, .num_classes = 6};
  return {.make_model = [options] { return create_model(options); },
          .make_optimizer = [] { return std::make_unique<AdamW>(); },
          .loss = make_loss_function([](HsiModel& net, const Batch& batch) {
            return LossOutput(cross_entropy(net.forward(batch["x"]), batch["y"]));
          }),
          .dataset = std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{
              {"x", torch::rand({16, options.patch_size, options.patch_size, options.bands})},
              {"y", torch::randint(options.num_classes, {16})}})};
}

TEST_CASE(
    "The peak memory of a step is predicted within 1 % of the counted peak: each network for scenes, fp32 and bf16") {
  for (const std::string& model : model_names()) {
    StepRecipe recipe = recipe_of(model);
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      recipe.step.precision = precision;
      const auto record = [&](int64_t rows) { return record_step_memory(recipe, rows, 1); };
      const MemoryEstimate estimate = MemoryEstimate::create(record).value();
      for (const int64_t rows : {16, 17, 33, 64, 101, 128, 160}) {
        INFO(model << ", " << rows << " rows, precision " << static_cast<int>(precision) << ", bases checked at "
                   << estimate.check_batch_size());
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

TEST_CASE("The ladder for a scene suggests a smaller model or smaller patches if they take less memory") {
  const test::HsiPlace place;
  for (const char* feed : {"device", "loader"}) {
    RunOptions run;
    HsiOptions options;
    set_run_defaults(run);
    ConfigParser parser({.name = "trainkit-hsi"});
    add_run_flags(parser, run);
    add_hsi_flags(parser, options);
    std::vector<std::string> flags = place.flags("run", {"--model", "cnn3d", "--patch_size", "11", "--feed", feed});
    flags.insert(flags.begin(), "trainkit-hsi");
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    REQUIRE(parser.parse(static_cast<int>(argv.size()), argv.data()).ok());
    run.dry_run = true;
    const Placement placement;
    const hsi::Session session = hsi::Session::open(parser, run, options, placement).value();
    StepRecipe recipe = session.recipe(session.split(run).value().train);
    recipe.make_optimizer = [] { return std::make_unique<AdamW>(AdamWOptions{}); };
    const auto peak = [](const StepRecipe& some) { return record_step_memory(some, 12, 1).value().peak(); };
    const MemoryBytes own = peak(recipe);
    std::vector<std::string> offered;
    for (const auto& [flag, change] : recipe.smaller) {
      INFO(feed << ", " << flag);
      offered.push_back(flag);
      StepRecipe other = recipe;
      change(other);
      const MemoryBytes less = peak(other);
      if (!flag.starts_with("--patch_size")) continue;
      CHECK(less.total() < own.total());
      CHECK(less[MemoryClass::kCache] <= own[MemoryClass::kCache]);
    }
    CHECK(offered ==
          std::vector<std::string>{"--model cnn2d --patch_size 11 --pca 0", "--patch_size 9", "--patch_size 7"});
    // With 16 bands cnn2d takes more memory: the ladder contains only suggestions that help.
    Placement planned;
    planned.batch.batch_size = 12;
    run.batch_size.value = 12;
    const std::string ladder = plan_memory(parser, run, MachineInfo{}, recipe, planned).value().ladder();
    CHECK_THAT(ladder, Catch::Contains("\n  --batch_size 6 ") && Catch::Contains("\n  --patch_size 7 "));
    CHECK_THAT(ladder, !Catch::Contains("--model cnn2d"));
  }
}

}  // namespace
}  // namespace trainkit
