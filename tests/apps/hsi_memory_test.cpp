#include <torch/torch.h>

#include "hsi_classification/models.h"
#include "test_util.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/memory/batch_size_planner.h"
#include "trainkit/nn/cross_entropy.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/step_memory.h"

namespace trainkit {
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

TEST_CASE("The peak of a step is predicted within 1 % of the counted one: each network of scenes, fp32 and bf16") {
  for (const std::string& model : model_names()) {
    StepRecipe recipe = recipe_of(model);
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      recipe.step.precision = precision;
      const auto record = [&](int64_t rows) { return record_step_memory(recipe, rows, 1); };
      const MemoryEstimate estimate = MemoryEstimate::create(record).value();
      for (const int64_t rows : {16, 17, 33, 64, 101, 128, 160}) {
        INFO(model << ", " << rows << " rows, precision " << static_cast<int>(precision) << ", bases checked at "
                   << estimate.check_batch_size());
        const auto counted = static_cast<double>(record(rows).value().without(MemoryClass::kWorkspace).peak().total());
        CHECK(static_cast<double>(estimate.predict(rows).peak.total()) == Approx(counted).epsilon(0.01));
      }
    }
  }
}

}  // namespace
}  // namespace trainkit
