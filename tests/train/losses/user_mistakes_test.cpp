// Mistakes in a caller's model, optimizer or loss function: one error with an id, the step and the remedy.
#include <absl/status/statusor.h>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/evaluate.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

std::unique_ptr<Prefetcher> some_rows() {
  return Prefetcher::create(tiny_dataset(8), SequentialSampler(8), {.batch_size = 4}).value();
}

void expect(const absl::Status& status, const std::string& id, const std::string& text, const std::string& remedy) {
  INFO(error_text(status));
  REQUIRE(error_of(status));
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_of(status)->id == id);
  CHECK_THAT(error_line(status), Catch::Contains(text));
  CHECK_THAT(error_of(status)->hint, Catch::Contains(remedy));
}

/// A model whose layer is a member only.
struct ForgetfulImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{8, 4};
};
TORCH_MODULE(Forgetful);

/// The same next to one that is registered.
struct HalfForgetfulImpl : ForgetfulImpl {
  torch::nn::Linear known = register_module("known", torch::nn::Linear(8, 4));
};
TORCH_MODULE(HalfForgetful);

template <class M, class F>
absl::Status status_of(M make, F loss) {
  auto devices = DeviceReplicator::create(make).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_epochs = 1}).value();
  return trainer.fit(*some_rows(), loss).status();
}

}  // namespace

TEST_CASE("A loss that cannot be trained is one error with its step and the remedy", "[train][mistakes]") {
  const auto net = [] { return TinyNet(); };
  const auto calls = std::make_shared<int>(0);
  expect(status_of(net,
                   [calls](TinyNet& model, const Batch& batch) {
                     const at::Tensor losses =
                         at::cross_entropy_loss(model->forward(batch["x"]), batch["y"], {}, at::Reduction::None);
                     return ++*calls == 2 ? losses : losses.mean();
                   }),
         "user.loss", "step 2: loss: is not a scalar (got 'shape [4]'", "LossOutput::weight");
  expect(status_of(net, [](TinyNet&, const Batch&) { return at::Tensor(); }), "user.loss", "an undefined tensor",
         "loss.mean()");
  expect(status_of(net, [](TinyNet& model, const Batch& batch) { return tiny_loss(model, batch).detach(); }),
         "user.detached", "step 1: loss: does not require a gradient", "LossOutput::loss");
  expect(status_of(net,
                   [](TinyNet& model, const Batch& batch) {
                     LossOutput output(tiny_loss(model, batch));
                     output.metrics = {{"each", batch["y"]}};
                     return output;
                   }),
         "user.metric", "step 1: each: a metric", "mean()");
  expect(status_of(net, [layer = torch::nn::Linear(8, 4)](
                            TinyNet&, const Batch& batch) mutable { return layer->forward(batch["x"]).mean(); }),
         "user.detached", "step 1: loss: depends on no parameter of the optimizer", "register_module");
}

TEST_CASE("Layers that are not registered, or all frozen, are one error with the remedy", "[train][mistakes]") {
  expect(status_of([] { return Forgetful(); },
                   [](Forgetful& model, const Batch& batch) { return model->forward(batch["x"]).mean(); }),
         "user.unregistered", "model: has no parameters", "register_module");
  expect(status_of([] { return HalfForgetful(); },
                   [](HalfForgetful& model, const Batch& batch) { return model->forward(batch["x"]).mean(); }),
         "user.detached", "depends on no parameter of the optimizer", "register_module");
  const auto loss = [](torch::nn::Linear& model, const Batch& batch) { return model->forward(batch["x"]).mean(); };
  expect(status_of(
             [] {
               torch::nn::Linear layer(8, 4);
               for (at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(false);
               return layer;
             },
             loss),
         "user.frozen", "none of its parameters requires a gradient", "DeviceReplicator::create");
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(8, 4); }).value();
  auto trainer = Trainer::create(*devices, SGD({.lr = 0.1}), {.max_epochs = 1}).value();
  int calls = 0;
  expect(trainer
             .fit(*some_rows(),
                  [&](torch::nn::Linear& model, const Batch& batch) {
                    if (++calls == 2) {
                      for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
                    }
                    return model->forward(batch["x"]).mean();
                  })
             .status(),
         "user.frozen", "step 2: model: none", "requires_grad");
}

TEST_CASE("An evaluation refuses a loss that is not a scalar", "[train][mistakes]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  const LossFunction loss =
      make_loss_function([](TinyNet& model, const Batch& batch) { return model->forward(batch["x"]); });
  expect(evaluate(*devices, *some_rows(), loss).status(), "user.loss", "evaluation: loss: is not a scalar",
         "loss.mean()");
}

TEST_CASE("A parameter of the optimizer that is not the model's is refused by group and index before the first step",
          "[train][mistakes]") {
  for (const double ema : {0.0, 0.9}) {
    for (const int64_t replicas : {1, 2}) {
      CAPTURE(ema, replicas);
      auto devices =
          DeviceReplicator::create([] { return TinyNet(); }, {.cpu_replicas = replicas, .share_weights = false})
              .value();
      SGD optimizer({.lr = 0.1});
      optimizer.add_param_groups(default_param_groups(*devices->module()));
      const auto group = std::ssize(optimizer.param_groups());
      const at::Tensor temperature = torch::ones({1}, at::TensorOptions().requires_grad(true));
      optimizer.add_param_group({.params = {{"temperature", temperature}}});
      absl::Status status;
      try {
        TrainStep(*devices, optimizer, {.ema_decay = ema});
      } catch (...) {
        status = status_from_current_exception();
      }
      expect(status, "user.parameter", "parameter 0 of group " + std::to_string(group), "register_parameter");
      CHECK_THAT(error_line(status), Catch::Contains("got 'temperature'"));
    }
  }
}

TEST_CASE("A loss that is not finite names the rows of its step before it advises a lower learning rate",
          "[train][mistakes]") {
  for (const double clip : {0.0, 1.0}) {
    CAPTURE(clip);
    auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
    auto loader = Prefetcher::create(tiny_dataset(12), SequentialSampler(12), {.batch_size = 4}).value();
    auto trainer =
        Trainer::create(*devices, SGD({.lr = 0.1}), {.max_epochs = 1, .grad_clip = clip, .log_every = 1}).value();
    int calls = 0;
    const absl::Status status = trainer
                                    .fit(*loader,
                                         [&](TinyNet& model, const Batch& batch) {
                                           const at::Tensor loss = tiny_loss(model, batch);
                                           return ++calls == 2 ? loss * NAN : loss;
                                         })
                                    .status();
    REQUIRE(error_of(status));
    CHECK(error_of(status)->id == "train.nonfinite");
    CHECK_THAT(error_of(status)->hint,
               Catch::StartsWith("check the step's rows first: 4, 5, 6, 7 of the data set; then "
                                 "lower the learning rate"));
  }
}
