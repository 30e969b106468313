// A step uses the gradients of its own loss alone, for the parameters of its own optimizer alone.
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/optim/lr_scheduler.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A generator and a discriminator.
struct GanImpl : torch::nn::Module {
  GanImpl()
      : generator(register_module("generator", torch::nn::Linear(4, 8))),
        discriminator(register_module("discriminator", torch::nn::Linear(8, 1))) {}
  torch::nn::Linear generator, discriminator;
};
TORCH_MODULE(Gan);

at::Tensor generator_loss(Gan& gan, const Batch& batch) {
  return -gan->discriminator(torch::tanh(gan->generator(batch["z"]))).mean();
}

at::Tensor discriminator_loss(Gan& gan, const Batch& batch) {
  const at::Tensor made = torch::tanh(gan->generator(batch["z"]));
  return (gan->discriminator(made) - gan->discriminator(batch["real"])).mean();
}

Batch gan_rows(uint64_t seed) {
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"z", at::kFloat, {4}}, {"real", at::kFloat, {8}}});
  auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
  return Batch(fields, {at::randn({6, 4}, random), at::randn({6, 8}, random)});
}

ParamGroup group_of(const torch::nn::Module& module, const std::string& part) {
  ParamGroup group;
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.key().starts_with(part)) group.params.push_back({parameter.key(), parameter.value()});
  }
  return group;
}

std::vector<at::Tensor> parameters_of(const DeviceReplicator& devices) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : devices.module()->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

bool are_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::allclose(x, y, 1e-5, 1e-6); });
}

std::unique_ptr<DeviceReplicator> gans(const DeviceReplicatorOptions& options) {
  torch::manual_seed(1);
  return DeviceReplicator::create([] { return Gan(); }, options).value();
}

/// Two micro-batches per step, by hand.
std::vector<at::Tensor> gan_by_hand() {
  const auto devices = gans({});
  Gan gan(std::dynamic_pointer_cast<GanImpl>(devices->module()));
  const c10::AutoGradMode grad(true);
  for (uint64_t i = 0; i < 3; ++i) {
    for (const bool generates : {false, true}) {
      for (const at::Tensor& parameter : gan->parameters()) parameter.mutable_grad().reset();
      for (const uint64_t seed : {2 * i, 2 * i + 1}) {
        const at::Tensor loss =
            generates ? generator_loss(gan, gan_rows(seed)) : discriminator_loss(gan, gan_rows(seed));
        (loss / 2).backward();
      }
      const at::NoGradGuard no_grad;
      const torch::nn::Linear part = generates ? gan->generator : gan->discriminator;
      for (at::Tensor parameter : part->parameters()) parameter.sub_(parameter.grad(), 0.1);
    }
  }
  return parameters_of(*devices);
}

}  // namespace

TEST_CASE("Two steps that train two parts of one model use their own losses only, also with interleaved micro-batches",
          "[train][step_gradients]") {
  const std::vector<at::Tensor> expected = gan_by_hand();
  for (const bool to_none : {true, false}) {
    for (const auto& [replicas, shares] : {std::pair(1, true), {2, true}, {2, false}}) {
      for (const bool interleaved : {false, true}) {
        CAPTURE(to_none, replicas, shares, interleaved);
        const auto devices = gans({.cpu_replicas = replicas, .share_weights = shares});
        SGD first({.lr = 0.1}), second({.lr = 0.1});
        first.add_param_group(group_of(*devices->module(), "discriminator"));
        second.add_param_group(group_of(*devices->module(), "generator"));
        const TrainStepOptions options{.grad_accum_steps = 2, .zero_grad_set_to_none = to_none};
        TrainStep discriminates(*devices, first, options), generates(*devices, second, options);
        const LossFunction d = make_loss_function(discriminator_loss), g = make_loss_function(generator_loss);
        for (uint64_t i = 0; i < 3; ++i) {
          discriminates.accumulate(gan_rows(2 * i), d);
          // Of a step that is given up: it must leave no trace.
          if (interleaved) {
            TrainStep other(*devices, second, options);
            other.accumulate(gan_rows(77), g);
          }
          discriminates.accumulate(gan_rows(2 * i + 1), d);
          discriminates.finish();
          generates.accumulate(gan_rows(2 * i), g);
          generates.accumulate(gan_rows(2 * i + 1), g);
          generates.finish();
        }
        CHECK(are_close(parameters_of(*devices), expected));
      }
    }
  }
}

TEST_CASE("Gradients that others left before a step do not enter it, and those of other parameters stay",
          "[train][step_gradients]") {
  for (const bool to_none : {true, false}) {
    for (const int64_t replicas : {1, 2}) {
      CAPTURE(to_none, replicas);
      const auto run = [&](bool disturbed) {
        const auto devices = gans({.cpu_replicas = replicas});
        SGD optimizer({.lr = 0.1});
        optimizer.add_param_group(group_of(*devices->module(), "generator"));
        TrainStep step(*devices, optimizer, {.zero_grad_set_to_none = to_none});
        const LossFunction loss = make_loss_function(generator_loss);
        for (uint64_t i = 0; i < 3; ++i) {
          for (int64_t replica = 0; disturbed && replica < replicas; ++replica) {
            Gan gan(std::dynamic_pointer_cast<GanImpl>(devices->module(replica)));
            for (const at::Tensor& parameter : gan->discriminator->parameters()) parameter.mutable_grad().reset();
            (5 * generator_loss(gan, gan_rows(9))).backward();
          }
          const at::Tensor gradient = devices->module()->named_parameters()["discriminator.weight"].grad();
          const at::Tensor kept = gradient.defined() ? gradient.clone() : at::Tensor();
          step(gan_rows(i), loss);
          const at::Tensor& after = devices->module()->named_parameters()["discriminator.weight"].grad();
          CHECK(after.defined() == disturbed);
          if (disturbed) CHECK(at::equal(after, kept));
        }
        return parameters_of(*devices);
      };
      const auto quiet = run(false), disturbed = run(true);
      for (size_t i = 0; i < quiet.size(); ++i) CHECK(at::equal(quiet[i], disturbed[i]));
    }
  }
}

namespace {

/// Learning rate 0, and an exception at the end of an update.
struct BrokenSchedule : LRSchedule {
  explicit BrokenSchedule(const bool& broken) : broken_(broken) {}
  double factor(int64_t) const override {
    TORCH_CHECK(!broken_, "no learning rate");
    return 0.0;
  }
  const bool& broken_;
};

}  // namespace

TEST_CASE("The gradients of a step whose update failed do not enter the next one", "[train][step_gradients]") {
  const auto run = [](bool fails) {
    const auto devices = gans({});
    SGD optimizer({.lr = 0.1});
    bool broken = false;
    LRScheduler scheduler(optimizer, std::make_shared<BrokenSchedule>(broken));
    TrainStep step(*devices, optimizer, {}, &scheduler);
    const LossFunction loss = make_loss_function(generator_loss);
    step(gan_rows(0), loss);
    broken = fails;
    if (fails) CHECK_THROWS_WITH(step(gan_rows(1), loss), Catch::Contains("no learning rate"));
    broken = false;
    CHECK(step.accumulated() == 0);
    optimizer.set_lr(0.1);
    step(gan_rows(2), loss);
    return parameters_of(*devices);
  };
  const auto quiet = run(false), failed = run(true);
  for (size_t i = 0; i < quiet.size(); ++i) CHECK(at::equal(quiet[i], failed[i]));
}
