#include "train/planning/step_flops.h"

#include <torch/torch.h>

#include <thread>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/nn/functional.h"
#include "trainkit/nn/resnet18.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

StepRecipe recipe_of(const std::function<std::shared_ptr<torch::nn::Module>()>& make, const at::Tensor& x,
                     const std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)>& forward) {
  return {.make_model = make,
          .make_optimizer = [] { return std::make_unique<SGD>(); },
          .loss = [forward](
                      torch::nn::Module& model,
                      const Batch& batch) { return LossOutput(cross_entropy(forward(model, batch["x"]), batch["y"])); },
          .dataset = std::make_shared<TensorDataset>(
              std::vector<std::pair<std::string, at::Tensor>>{{"x", x}, {"y", torch::randint(4, {x.size(0)})}})};
}

TEST_CASE(
    "A step of a perceptron takes six operations per weight and row, less the input gradient of the first layer") {
  const StepRecipe recipe = recipe_of(
      [] { return torch::nn::Sequential(torch::nn::Linear(8, 30), torch::nn::ReLU(), torch::nn::Linear(30, 4)).ptr(); },
      torch::rand({16, 8}),
      [](torch::nn::Module& model, const at::Tensor& x) { return model.as<torch::nn::Sequential>()->forward(x); });
  for (const int64_t rows : {1, 5, 16}) {
    // Forward, the gradients of the weights, and the input gradient of the second layer only.
    const double expected = static_cast<double>(rows) * 2 * (2 * 8 * 30 + 3 * 30 * 4);
    CHECK(count_step_flops(recipe, rows).value() == expected);
  }
}

TEST_CASE(
    "ResNet18 has the operation count that torchvision documents: 1.814 G multiply-adds per 224 x 224 image, forward") {
  const StepRecipe recipe =
      recipe_of([] { return ResNet18(ResNet18Options{.num_classes = 1000}).ptr(); }, torch::rand({1, 3, 224, 224}),
                [](torch::nn::Module& model, const at::Tensor& x) { return model.as<ResNet18Impl>()->forward(x); });
  // The first layer has no input gradient: 64 kernels of 3 x 7 x 7 at 112 x 112 places.
  const double first = 2.0 * 64 * 3 * 7 * 7 * 112 * 112;
  CHECK(count_step_flops(recipe, 1).value() == Approx(3 * 2 * 1.814e9 - first).epsilon(1e-3));
}

TEST_CASE("Operations of other threads are not counted") {
  StepRecipe recipe =
      recipe_of([] { return torch::nn::Linear(8, 4).ptr(); }, torch::rand({16, 8}),
                [](torch::nn::Module& model, const at::Tensor& x) {
                  std::thread([] { torch::mm(torch::ones({100, 100}), torch::ones({100, 100})); }).join();
                  return model.as<torch::nn::Linear>()->forward(x);
                });
  CHECK(count_step_flops(recipe, 16).value() == 16.0 * 2 * 2 * 8 * 4);
}

TEST_CASE("A step that reads values after an operation has each operation counted once") {
  const StepRecipe recipe = recipe_of([] { return torch::nn::Linear(8, 4).ptr(); }, torch::rand({16, 8}),
                                      [](torch::nn::Module& model, const at::Tensor& x) {
                                        const at::Tensor y = model.as<torch::nn::Linear>()->forward(x);
                                        return y.sum().item<float>() == 12345 ? y * 2 : y;
                                      });
  CHECK(count_step_flops(recipe, 16).value() == 16.0 * 2 * 2 * 8 * 4);
}

}  // namespace
}  // namespace trainkit
