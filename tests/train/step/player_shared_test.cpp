// Tensors that players share, and what else one of them does to the step of another.
#include "test_util.h"
#include "train/gan.h"
#include "trainkit/distributed/sync_batch_norm.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A body with a norm, and a head: two players, of which the body's uses the graph of the shared features.
template <class Norm>
struct NormedImpl : torch::nn::Module {
  explicit NormedImpl(bool evaluates)
      : first(register_module("first", torch::nn::Linear(8, 4))),
        norm(register_module("norm", Norm(4))),
        second(register_module("second", torch::nn::Linear(4, 4))),
        head(register_module("head", torch::nn::Linear(4, 1))) {
    if (evaluates) norm->eval();
  }
  at::Tensor features(const at::Tensor& x) { return second->forward(norm->forward(first->forward(x))); }

  torch::nn::Linear first;
  Norm norm;
  torch::nn::Linear second, head;
};
using Plain = NormedImpl<torch::nn::BatchNorm1d>;
using Synchronised = NormedImpl<SyncBatchNorm>;

template <class Net>
std::unique_ptr<DeviceReplicator> normed_devices(bool evaluates, int64_t replicas = 1) {
  const auto make = [evaluates] {
    torch::manual_seed(2);
    return std::make_shared<Net>(evaluates);
  };
  return DeviceReplicator::create(make, {.device = at::kCPU, .cpu_replicas = replicas, .sync_batch_norm = true})
      .value();
}

template <class Net>
Shared features_of(Net& net, const Batch& batch) {
  return {{"features", net.features(batch["x"])}};
}

template <class Net>
std::vector<Player> head_and_body() {
  return {
      {.name = "head",
       .parameters = {"head.*"},
       .optimizer = std::make_shared<SGD>(SGDOptions{.lr = 0.1}),
       .loss = [](Net& net, const Batch&,
                  const Shared& shared) { return net.head->forward(shared.at("features").detach()).square().mean(); }},
      {.name = "body",
       .parameters = {"first.*", "norm.*", "second.*"},
       .optimizer = std::make_shared<SGD>(SGDOptions{.lr = 0.1}),
       .loss = [](Net& net, const Batch&, const Shared& shared) {
         return net.head->forward(shared.at("features")).add(1).square().mean();
       }}};
}

}  // namespace

TEST_CASE("A group that thaws is in the graph of the shared tensors of the same step", "[train][player]") {
  const auto devices = normed_devices<Plain>(/*evaluates=*/true);
  std::vector<Player> players = head_and_body<Plain>();
  auto& net = *devices->module()->as<Plain>();
  players[1].optimizer->add_param_group({.params = {{"first.weight", net.first->weight}}, .trainable_from = 1});
  players[1].optimizer->add_param_group({.params = {{"second.weight", net.second->weight}}});
  TrainStep step(*devices, players, features_of<Plain>, {});
  const at::Tensor at_first = net.first->weight.detach().clone();
  step(gan_batch(0));
  CHECK(net.first->weight.equal(at_first));
  step(gan_batch(1));
  CHECK_FALSE(net.first->weight.equal(at_first));
}

TEST_CASE("A skipped step restores the buffers from before the shared tensors", "[train][player]") {
  const auto devices = normed_devices<Plain>(/*evaluates=*/false);
  TrainStep step(*devices, head_and_body<Plain>(), features_of<Plain>, {.skip_nonfinite = true});
  step(gan_batch(0));
  const auto& norm = devices->module()->as<Plain>()->norm;
  const at::Tensor mean = norm->running_mean.clone();
  const Batch batch = gan_batch(1);
  batch["x"][0][0] = NAN;
  step(batch);
  CHECK(norm->running_mean.equal(mean));
  step(gan_batch(2));
  CHECK(norm->running_mean.isfinite().all().item<bool>());
  CHECK_FALSE(norm->running_mean.equal(mean));
}

TEST_CASE("Replicas share the graph of a norm in evaluation mode", "[train][player]") {
  const auto run = [](int64_t replicas) {
    const auto devices = normed_devices<Plain>(/*evaluates=*/true, replicas);
    TrainStep step(*devices, head_and_body<Plain>(), features_of<Plain>, {});
    for (int64_t i = 0; i < 3; ++i) step(gan_batch(i));
    return devices->module()->as<Plain>()->first->weight.detach().clone();
  };
  CHECK(at::allclose(run(2), run(1), 1e-4, 1e-6));
}

TEST_CASE("A replica without rows has none in the statistics of the shared tensors", "[train][player]") {
  const auto run = [](int64_t replicas) {
    const auto devices = normed_devices<Synchronised>(/*evaluates=*/false, replicas);
    TrainStep step(*devices, head_and_body<Synchronised>(), features_of<Synchronised>, {});
    for (int64_t i = 0; i < 2; ++i) step(gan_batch(i, /*rows=*/4));
    const auto& norm = devices->module()->as<Synchronised>()->norm;
    return at::cat({norm->running_mean, norm->running_var});
  };
  CHECK(at::allclose(run(5), run(1), 1e-3, 1e-4));
}

TEST_CASE("A replica whose rows have no weight, and so no loss, leaves the gradients of shared tensors finite",
          "[train][player]") {
  const auto run = [](int64_t replicas, bool detached) {
    const auto devices = normed_devices<Synchronised>(/*evaluates=*/false, replicas);
    std::vector<Player> players = head_and_body<Synchronised>();
    players[1].loss = [detached](Synchronised& net, const Batch& batch, const Shared& shared) -> LossOutput {
      // The last row of four has weight 0: the loss of its replica is 0 / 0.
      const at::Tensor weight = batch["x"].slice(1, 0, 1).ne(9).to(at::kFloat);
      const at::Tensor features = detached ? net.second->forward(batch["x"].slice(1, 0, 4)) : shared.at("features");
      const at::Tensor errors = net.head->forward(features).add(1).square() * weight;
      return {errors.sum() / weight.sum(), weight.sum().item<double>()};
    };
    TrainStep step(*devices, players, features_of<Synchronised>, {});
    for (int64_t i = 0; i < 2; ++i) {
      const Batch batch = gan_batch(i, /*rows=*/4);
      batch["x"][3][0] = 9;
      step(batch);
    }
    const auto& net = *devices->module()->as<Synchronised>();
    return at::cat({net.first->weight.flatten(), net.second->weight.flatten(), net.norm->running_var}).detach();
  };
  for (const bool detached : {false, true}) CHECK(at::allclose(run(4, detached), run(1, detached), 1e-3, 1e-5));
}

TEST_CASE("The players after one that ran out of memory split their batches too", "[train][player]") {
  const auto run = [](bool fails) {
    const auto devices = normed_devices<Plain>(/*evaluates=*/true);
    std::vector<Player> players = head_and_body<Plain>();
    for (Player& player : players) {
      player.loss = [fails = fails && player.name == "head"](Plain& net, const Batch& batch) mutable {
        if (std::exchange(fails, false)) throw c10::OutOfMemoryError({__func__, __FILE__, 0}, "no memory");
        return net.head->forward(net.features(batch["x"])).add(1).square().mean();
      };
    }
    TrainStep step(*devices, players, nullptr, {});
    if (!fails) step.set_split(2);
    step(gan_batch(0));
    CHECK(step.split() == 2);
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : devices->module()->parameters()) weights.push_back(parameter.detach().flatten());
    return at::cat(weights);
  };
  CHECK(run(true).equal(run(false)));
}
