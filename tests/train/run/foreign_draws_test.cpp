// FitOptions::watch_generators: threads that draw from LibTorch's default generators during a run.
#include <ATen/CPUGeneratorImpl.h>

#include <thread>

#include "test_util.h"
#include "train/trainer_run.h"
#include "trainkit/core/status.h"
#include "trainkit/optim/sgd.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// A run that draws in its step, with `host` in another thread after the first step.
absl::Status run(const std::function<void()>& host, const DeviceReplicatorOptions& options = {}, int64_t steps = 3) {
  torch::manual_seed(11);
  const auto devices = DeviceReplicator::create([] { return TinyNet(); }, options).value();
  Trainer trainer = Trainer::create(*devices, SGD({.lr = 0.01}), {.max_steps = steps}).value();
  const auto loader = tiny_loader(52, 4);
  const auto loss = [](TinyNet& net, const Batch& batch) {
    return tiny_loss(net, batch) + 1e-3 * torch::rand({1}).sum();
  };
  FitOptions fit;
  fit.watch_generators = true;
  Session session = trainer.begin(*loader, loss, fit).value();
  TRAINKIT_RETURN_IF_ERROR(session.step().status());
  torch::rand({2});  // the thread that steps may draw between steps
  std::thread(host).join();
  TRAINKIT_RETURN_IF_ERROR(session.step().status());
  TRAINKIT_RETURN_IF_ERROR(session.step().status());
  return session.finish().status();
}

}  // namespace

TEST_CASE("A draw of another thread is named", "[train][session]") {
  CHECK_THAT(std::string(run([] { torch::rand({2}); }).message()), Contains("aten::uniform_"));
  CHECK_THAT(std::string(run([] { torch::randperm(5); }).message()), Contains("aten::randperm"));
  CHECK_THAT(std::string(run([] { torch::dropout(torch::ones({4}), 0.5, true); }).message()), Contains("bernoulli"));
}

TEST_CASE("Draws of the run itself and of other generators are none", "[train][session]") {
  const auto own = [] {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
    at::rand({2}, generator);
    torch::ones({2}).mul(2);
  };
  CHECK(run(own) == absl::OkStatus());
  CHECK(run(own, {.device = at::kCPU, .cpu_replicas = 2}) == absl::OkStatus());
  CHECK(run(own, {.device = at::kCPU, .cpu_replicas = 2, .share_weights = false}) == absl::OkStatus());
}

TEST_CASE("Without the option nobody looks", "[train][session]") {
  torch::manual_seed(11);
  const auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  Trainer trainer = Trainer::create(*devices, SGD({.lr = 0.01}), {.max_steps = 2}).value();
  const auto loader = tiny_loader(52, 4);
  Session session = trainer.begin(*loader, tiny_loss).value();
  REQUIRE(session.step().ok());
  std::thread([] { torch::rand({2}); }).join();
  CHECK(session.step().ok());
}
