#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "hsi_classification/models.h"
#include "test_util.h"
#include "trainkit/nn/functional.h"

using namespace trainkit;
using namespace trainkit::hsi;

namespace {

int64_t parameters_of(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

HsiModelOptions small(const std::string& name) {
  const HsiModelDefaults least = model_defaults(name);
  return {.model = name, .bands = least.min_bands + 4, .patch_size = least.min_patch_size + 2, .num_classes = 5};
}

}  // namespace

TEST_CASE("HybridSN and SSRN have the parameter counts of the literature", "[apps][hsi][models]") {
  CHECK(parameters_of(*create_model({.model = "hybridsn", .bands = 30, .patch_size = 25, .num_classes = 16})) ==
        5'122'176);
  CHECK(parameters_of(*create_model({.model = "ssrn", .bands = 200, .patch_size = 7, .num_classes = 16})) == 364'168);
}

TEST_CASE("Each model gives scores for its classes, for the smallest patch and band count too", "[apps][hsi][models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const HsiModelDefaults least = model_defaults(name);
    const HsiModelOptions tightest{
        .model = name, .bands = least.min_bands, .patch_size = least.min_patch_size, .num_classes = 3};
    for (const HsiModelOptions& options : {small(name), tightest}) {
      const auto model = create_model(options);
      const at::Tensor scores = model->forward(at::rand({4, options.patch_size, options.patch_size, options.bands}));
      CHECK(scores.sizes() == at::IntArrayRef({4, options.num_classes}));
      CHECK(at::isfinite(scores).all().item<bool>());
    }
  }
}

TEST_CASE("Each model learns to classify different patches, and every weight gets a gradient", "[apps][hsi][models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    torch::manual_seed(2);
    HsiModelOptions options = small(name);
    options.num_classes = 2;
    options.dropout = 0;
    const auto model = create_model(options);
    at::Tensor x = at::randn({16, options.patch_size, options.patch_size, options.bands}) * 0.3;
    const at::Tensor y = at::arange(16, at::kLong).remainder(2);
    x += (y.to(at::kFloat) - 0.5).view({16, 1, 1, 1});
    torch::optim::Adam optimizer(model->parameters(), 3e-3);
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = cross_entropy(model->forward(x), y);
      loss.backward();
      if (step == 0) {
        first = loss.item<double>();
        for (const auto& parameter : model->named_parameters()) {
          INFO(parameter.key());
          CHECK(parameter.value().grad().defined());
        }
      }
      optimizer.step();
      last = loss.item<double>();
    }
    CHECK(last < 0.2 * first);
  }
}

TEST_CASE("The spectral perceptron uses the centre pixel only; the other models use its neighbours",
          "[apps][hsi][models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    const HsiModelOptions options = small(name);
    const auto model = create_model(options);
    model->eval();
    const at::Tensor x = at::rand({1, options.patch_size, options.patch_size, options.bands});
    at::Tensor other = x.clone();
    other[0][0][0] += 1.0;
    const c10::NoGradGuard no_grad;
    CHECK(model->forward(x).equal(model->forward(other)) == (name == "mlp"));
  }
}

TEST_CASE("Sizes too small for a network, and unknown networks, are refused", "[apps][hsi][models]") {
  for (const std::string& name : model_names()) {
    INFO(name);
    HsiModelOptions options = small(name);
    options.patch_size = model_defaults(name).min_patch_size - 2;
    CHECK_THROWS_AS(create_model(options), c10::ValueError);
    options = small(name);
    options.patch_size += 1;
    CHECK_THROWS_AS(create_model(options), c10::ValueError);
    options = small(name);
    options.bands = model_defaults(name).min_bands - 1;
    CHECK_THROWS_AS(create_model(options), c10::ValueError);
  }
  CHECK_THROWS_AS(create_model({.model = "resnet"}), c10::ValueError);
}
